/* test_schema.c - what a schema compiler refuses and how it says so; its options; its limits */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/rng.h"
#include "support/grammar_data.h"
#include "support/json_tree.h"
#include "support/tokenizer_data.h"

struct refusal {
    const char *schema;
    fathom_err err;
    const char *says;
};

static const struct refusal refusals[] = {
    {"{\"contains\": {}}", FATHOM_EUNSUPPORTED,
     "schema #: the keyword \"contains\" is not supported"},
    {"{\"not\": {}}", FATHOM_EINVAL, "nothing satisfies"},
    {"{\"not\": {\"format\": \"uri\"}}", FATHOM_EUNSUPPORTED,
     "schema #: the keyword \"not\" is not supported for what this schema says"},
    /* 14 would satisfy it, "x" the next one, 2.25 the last one */
    {"{\"type\": \"number\", \"not\": {\"type\": \"number\", \"multipleOf\": 3}}",
     FATHOM_EUNSUPPORTED, "of the keyword \"not\" not all that the schema says is supported"},
    {"{\"type\": \"string\", \"oneOf\": [{\"type\": \"array\"}, {\"multipleOf\": 2, \"enum\": [1, "
     "\"\", []], \"maxLength\": 2}, {\"maxLength\": 1}]}",
     FATHOM_EUNSUPPORTED, "of the keyword \"oneOf\" not all that the schema says is supported"},
    {"{\"enum\": [2.25], \"not\": {\"type\": \"integer\"}}", FATHOM_EUNSUPPORTED,
     "of the keyword \"not\" not all"},
    {"{\"if\": {\"uniqueItems\": true}, \"then\": {\"maxItems\": 3}}", FATHOM_EUNSUPPORTED,
     "schema #: the keyword \"if\" is not supported for what this schema says"},
    {"{\"oneOf\": [{\"type\": \"string\"}, {\"type\": \"string\", \"format\": \"date\"}]}",
     FATHOM_EUNSUPPORTED, "\"oneOf\" is not supported for alternatives that cannot be told apart"},
    {"{\"dependentRequired\": {\"a\": 1}}", FATHOM_EINVAL,
     "an array of names or a schema is needed"},
    {"{\"properties\": {\"a\": {\"items\": {\"contains\": {}}}}}", FATHOM_EUNSUPPORTED,
     "schema #/properties/a/items: the keyword \"contains\""},
    {"{\"anyOf\": [{}, {\"extends\": {}}]}", FATHOM_EUNSUPPORTED,
     "schema #/anyOf/1: the keyword \"extends\""},
    {"{\"allOf\": [{\"$dynamicRef\": \"#a\"}]}", FATHOM_EUNSUPPORTED,
     "schema #/allOf/0: the keyword \"$dynamicRef\""},
    {"{\"$defs\": {\"a/b\": {\"contains\": {}}}, \"properties\": {\"a/b~\": {\"$ref\": "
     "\"#/$defs/a~1b\"}}}",
     FATHOM_EUNSUPPORTED, "schema #/properties/a~1b~0: the keyword \"contains\""},
    {"{\"type\": \"array\", \"uniqueItems\": true}", FATHOM_EUNSUPPORTED, "\"uniqueItems\""},
    {"{\"uniqueItems\": true, \"minItems\": 3, \"items\": {\"type\": \"boolean\"}, \"type\": "
     "\"array\"}",
     FATHOM_EINVAL, "nothing satisfies"},
    {"{\"type\": \"string\", \"format\": \"idn-hostname\"}", FATHOM_EUNSUPPORTED,
     "the \"format\" \"idn-hostname\" is not supported"},
    {"{\"type\": \"string\", \"pattern\": \"(?=a)\"}", FATHOM_EUNSUPPORTED,
     "schema #: pattern, byte 2: look-around"},
    {"{\"type\": \"string\", \"pattern\": \"(\"}", FATHOM_EINVAL, "without its )"},
    {"{\"$ref\": \"other.json\"}", FATHOM_EUNSUPPORTED, "leads outside the schema"},
    {"{\"$ref\": \"#/$defs/x\"}", FATHOM_EINVAL, "leads to nothing"},
    {"{\"$ref\": \"#none\"}", FATHOM_EINVAL, "leads to nothing"},
    {"{\"$ref\": 1}", FATHOM_EINVAL, "\"$ref\" is an integer, a string is needed"},
    {"{\"$ref\": \"#\"}", FATHOM_EINVAL, "in a circle"},
    {"{\"$defs\": {\"a\": {\"anyOf\": [{\"$ref\": \"#/$defs/a\"}, {}]}}, \"$ref\": \"#/$defs/a\"}",
     FATHOM_EINVAL, "in a circle"},
    {"{\"patternProperties\": {\"^a\": {}, \"b$\": {}}}", FATHOM_EUNSUPPORTED,
     "has names in common with another pattern"},
    {"{\"patternProperties\": {\"(\": {}}}", FATHOM_EINVAL, "without its )"},
    {"{\"allOf\": [{\"patternProperties\": {\"^a\": {}}}, {\"additionalProperties\": false}]}",
     FATHOM_EUNSUPPORTED, "\"patternProperties\" is not supported together with another"},
    {"{\"properties\": {\"a\": {}}, \"allOf\": [{\"properties\": {\"b\": {}}, "
     "\"unevaluatedProperties\": false}]}",
     FATHOM_EUNSUPPORTED, "\"unevaluatedProperties\" is not supported in a schema that others"},
    {"{\"prefixItems\": [{}], \"anyOf\": [{\"items\": {}, \"unevaluatedItems\": false}]}",
     FATHOM_EUNSUPPORTED, "\"unevaluatedItems\" is not supported in a schema that others"},
    {"{\"type\": \"object\", \"properties\": {\"p\": {}}, \"$ref\": \"#/$defs/a\", \"$defs\": "
     "{\"a\": "
     "{\"unevaluatedProperties\": false}}}",
     FATHOM_EUNSUPPORTED, "\"unevaluatedProperties\" is not supported in a schema that others"},
    {"{\"$ref\": \"#/$defs/a\", \"properties\": {\"p\": {}}, \"$defs\": {\"a\": "
     "{\"unevaluatedProperties\": false}}}",
     FATHOM_EUNSUPPORTED, "\"unevaluatedProperties\" is not supported in a schema that others"},
    {"{\"type\": \"object\", \"allOf\": [{\"properties\": {\"a\": {}}, \"unevaluatedProperties\": "
     "true}, {\"unevaluatedProperties\": false}]}",
     FATHOM_EUNSUPPORTED, "\"unevaluatedProperties\" is not supported in a schema that others"},
    {"{\"type\": \"object\", \"allOf\": [{\"unevaluatedProperties\": false}, {\"properties\": "
     "{\"a\": {}}, \"unevaluatedProperties\": true}]}",
     FATHOM_EUNSUPPORTED, "\"unevaluatedProperties\" is not supported in a schema that others"},
    {"{\"type\": \"object\", \"properties\": {\"a\": {}}, \"allOf\": [{\"unevaluatedProperties\": "
     "false}], \"unevaluatedProperties\": true}",
     FATHOM_EUNSUPPORTED, "\"unevaluatedProperties\" is not supported in a schema that others"},
    {"{\"anyOf\": [{\"unevaluatedProperties\": false}, {}], \"properties\": {\"a\": {}}}",
     FATHOM_EUNSUPPORTED, "\"unevaluatedProperties\" is not supported in a schema that others"},
    {"{\"type\": \"array\", \"allOf\": [{\"prefixItems\": [true]}, {\"unevaluatedItems\": false}]}",
     FATHOM_EUNSUPPORTED, "\"unevaluatedItems\" is not supported in a schema that others"},
    {"{\"type\": \"array\", \"allOf\": [{\"unevaluatedItems\": false}, {\"prefixItems\": [true]}]}",
     FATHOM_EUNSUPPORTED, "\"unevaluatedItems\" is not supported in a schema that others"},
    {"{\"type\": \"object\", \"required\": [\"a\"], \"maxProperties\": 0}", FATHOM_EINVAL,
     "nothing satisfies"},
    {"{\"type\": \"number\", \"multipleOf\": 0.123456789}", FATHOM_EUNSUPPORTED, "\"multipleOf\""},
    {"{\"type\": \"number\", \"minimum\": 1e-30}", FATHOM_EUNSUPPORTED, "\"minimum\""},
    {"{\"type\": \"number\", \"multipleOf\": 0}", FATHOM_EINVAL, "a number above 0"},
    {"{\"type\": \"strin\"}", FATHOM_EINVAL, "\"type\" is \"strin\", one of null,"},
    {"{\"type\": 1}", FATHOM_EINVAL, "\"type\" is an integer"},
    {"{\"enum\": 1}", FATHOM_EINVAL, "an array is needed"},
    {"{\"properties\": {\"a\": 1}}", FATHOM_EINVAL, "schema #/properties: \"a\" is an integer"},
    {"{\"properties\": []}", FATHOM_EINVAL, "an object of schemas"},
    {"{\"required\": [1]}", FATHOM_EINVAL, "a name is needed"},
    {"{\"items\": 1}", FATHOM_EINVAL, "\"items\" is an integer"},
    {"{\"minLength\": -1}", FATHOM_EINVAL, "a whole number of 0 or more"},
    {"{\"maxItems\": 1.5}", FATHOM_EINVAL, "a whole number"},
    {"{\"minimum\": \"1\"}", FATHOM_EINVAL, "a number is needed"},
    {"{\"pattern\": 1}", FATHOM_EINVAL, "a string without NUL is needed"},
    {"{\"pattern\": \"a\\u0000b\"}", FATHOM_EINVAL, "a string without NUL is needed"},
    {"{\"anyOf\": []}", FATHOM_EINVAL, "an array of schemas"},
    {"{\"allOf\": {}}", FATHOM_EINVAL, "an array of schemas"},
    {"[]", FATHOM_EINVAL, "schema # is an array, an object, true or false is needed"},
    {"{\"additionalProperties\": 1}", FATHOM_EINVAL, "a schema is needed"},
    {"{\"propertyNames\": 1}", FATHOM_EINVAL, "a schema is needed"},
    {"{\"uniqueItems\": 1}", FATHOM_EINVAL, "true or false"},
    /* what nothing satisfies */
    {"false", FATHOM_EINVAL, "nothing satisfies"},
    {"{\"enum\": []}", FATHOM_EINVAL, "nothing satisfies"},
    {"{\"type\": \"integer\", \"minimum\": 3, \"maximum\": 2}", FATHOM_EINVAL, "nothing satisfies"},
    {"{\"type\": \"string\", \"minLength\": 3, \"maxLength\": 2}", FATHOM_EINVAL, "nothing"},
    {"{\"type\": \"string\", \"enum\": [1]}", FATHOM_EINVAL, "nothing satisfies"},
    {"{\"allOf\": [{\"type\": \"string\"}, {\"type\": \"null\"}]}", FATHOM_EINVAL, "nothing"},
    {"{\"type\": \"object\", \"required\": [\"a\"], \"additionalProperties\": false}",
     FATHOM_EINVAL, "nothing satisfies"},
    {"{\"type\": \"object\", \"properties\": {\"n\": {\"$ref\": \"#\"}}, \"required\": [\"n\"]}",
     FATHOM_EINVAL, "nothing satisfies"},
    {"{\"type\": \"array\", \"minItems\": 1, \"items\": false}", FATHOM_EINVAL, "nothing"},
    /* limits */
    {"{\"type\": \"array\", \"minItems\": 5000}", FATHOM_ELIMIT, "at most 4096"},
    {"{\"type\": \"string\", \"pattern\": \"^(a|b)*a(a|b){18}$\"}", FATHOM_ELIMIT, "states"},
    {"{\"type\": \"string\", \"pattern\": \"^.*$\", \"maxLength\": 100000}", FATHOM_ELIMIT,
     "states"},
    {"{\"type\": \"object\", \"maxProperties\": 100000}", FATHOM_ELIMIT, "too many to be counted"},
};

static void test_refusals(void **state)
{
    const struct grammar_data *g = *state;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        const struct refusal *r = &refusals[i];
        struct grammar *grammar;
        fathom_diag d = {""};
        json_t *schema = json_tree_of(r->schema);
        fathom_err err = grammar_from_schema(&grammar, g->v, schema, NULL, &d);
        if (err != r->err || !strstr(d.text, r->says)) {
            fail_msg("%s: %s: %s", r->schema, fathom_err_name(err), d.text);
        }
        assert_null(grammar);
        json_decref(schema);
    }
}

/* 4000 names, and others besides them: their automaton would have more states than it may. */
static void test_many_long_names(void **state)
{
    const struct grammar_data *g = *state;
    struct grammar *grammar;
    fathom_diag d = {""};
    json_t *properties = json_object(), *schema = json_pack("{s:O}", "properties", properties);
    for (uint64_t i = 0; i < 4000; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "%016llx", (unsigned long long)rng_hash(i));
        assert_int_equal(json_object_set_new(properties, name, json_true()), 0);
    }
    json_object_set_new(schema, "additionalProperties", json_true());
    assert_int_equal(grammar_from_schema(&grammar, g->v, schema, NULL, &d), FATHOM_ELIMIT);
    assert_non_null(strstr(d.text, "schema #: the names of members"));
    json_decref(properties);
    json_decref(schema);
}

static bool takes(const struct grammar_data *g, const char *schema,
                  const struct grammar_options *options, const char *text)
{
    struct grammar *grammar = grammar_of_schema(g, schema, options);
    bool taken = matcher_takes(g, grammar, text, strlen(text));
    grammar_release(grammar);
    return taken;
}

static void test_lenient(void **state)
{
    const struct grammar_data *g = *state;
    struct grammar_options lenient = {.lenient = true};
    const char *schema =
        "{\"type\": \"array\", \"items\": {\"type\": \"string\", \"format\": "
        "\"idn-hostname\", \"not\": {\"format\": \"uri\"}}, \"uniqueItems\": true, "
        "\"contains\": {}}";
    assert_true(takes(g, schema, &lenient, "[\"x\", \"x\"]"));
    assert_false(takes(g, schema, &lenient, "[1]"));
}

/* Elements of an enum differ: in any order while they are few, else in that of the enum. */
static void test_unique(void **state)
{
    const struct grammar_data *g = *state;
    static const struct {
        const char *schema;
        const char *texts[4]; /* two that are taken, two that are not */
    } cases[] = {
        {"{\"type\": \"array\", \"uniqueItems\": true, \"items\": {\"enum\": [\"a\", \"b\", 3]}}",
         {"[\"b\", 3, \"a\"]", "[]", "[\"a\", \"a\"]", "[\"a\", 3, \"a\"]"}},
        {"{\"type\": \"array\", \"uniqueItems\": true, \"minItems\": 2, \"maxItems\": 2, "
         "\"items\": {\"$ref\": \"#/$defs/x\"}, \"$defs\": {\"x\": {\"anyOf\": [{\"const\": 1}, "
         "{\"type\": [\"boolean\", \"null\"]}]}}}",
         {"[true, 1]", "[null, false]", "[true]", "[1, true, null]"}},
        {"{\"type\": \"array\", \"uniqueItems\": true, \"items\": {\"enum\": [1, 2, 3, 4, 5, 6, 7, "
         "8]}}",
         {"[1, 2, 3, 4, 5, 6, 7, 8]", "[8]", "[2, 2]", "[2, 1]"}},
        {"{\"type\": \"array\", \"uniqueItems\": true, \"minItems\": 2, \"maxItems\": 3, "
         "\"items\": "
         "{\"enum\": [1, 2, 3, 4, 5, 6, 7, 8, 1.0]}}",
         {"[1, 8]", "[1, 5, 8]", "[3]", "[1, 2, 3, 4]"}},
        {"{\"type\": \"array\", \"uniqueItems\": true, \"minItems\": 7, \"items\": {\"enum\": [1, "
         "2, 3, "
         "4, 5, 6, 7]}}",
         {"[1, 2, 3, 4, 5, 6, 7]", "[1,2,3,4,5,6,7]", "[1, 2, 3, 4, 5, 6]", "[]"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (size_t k = 0; k < 4; k++) {
            if (takes(g, cases[i].schema, NULL, cases[i].texts[k]) == (k < 2)) continue;
            fail_msg("%s: %s is %s", cases[i].schema, cases[i].texts[k],
                     k < 2 ? "refused" : "taken");
        }
    }
}

/* Words and formats that nobody defines say nothing. */
static void test_unknown_words(void **state)
{
    const struct grammar_data *g = *state;
    const char *schema =
        "{\"type\": \"string\", \"self\": {\"vendor\": \"x\"}, \"javaType\": \"Y\", "
        "\"links\": [], \"_format\": \"date\", \"format\": \"colour\"}";
    assert_true(takes(g, schema, NULL, "\"red\""));
    assert_false(takes(g, schema, NULL, "1"));
}

static void test_open_objects(void **state)
{
    const struct grammar_data *g = *state;
    struct grammar_options open = {.open_objects = true};
    const char *schema = "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\"}}}";
    assert_true(takes(g, schema, &open, "{\"a\": 1, \"b\": [null]}"));
    assert_false(takes(g, schema, &open, "{\"b\": 1, \"a\": 2}"));
    assert_false(takes(g, schema, NULL, "{\"a\": 1, \"b\": [null]}"));
    assert_true(takes(g, "{\"type\": \"object\"}", NULL, "{\"a\": 1, \"b\": [null]}"));
}

static void test_space(void **state)
{
    const struct grammar_data *g = *state;
    const char *schema = "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"array\", "
                         "\"items\": {\"type\": \"integer\"}}}, \"required\": [\"a\"]}";
    static const struct {
        const char *text;
        bool lines, one, none;
    } texts[] = {{"{\"a\":[1,2]}", true, true, true},
                 {"{\"a\": [1, 2]}", true, true, false},
                 {"{\"a\": [1,2]}", true, true, false},
                 {"{\n  \"a\": [\n    1,\n    2\n  ]\n}", true, false, false},
                 {"{\n\"a\":[1,\n\t2]}", true, false, false},
                 {"{ \"a\": [1, 2] }", false, false, false},
                 {"{\"a\":  [1, 2]}", false, false, false},
                 {"{\"a\":\n[1, 2]}", false, false, false},
                 {"{\n\n\"a\": [1, 2]}", false, false, false},
                 {"{\"a\" : [1, 2]}", false, false, false},
                 {"{\n\t\t\"a\": []\n}", true, false, false},
                 {"{\n\t \"a\": []}", false, false, false},
                 {"{\"a\": []\n }", false, false, false}};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct grammar_options o = {.space = GRAMMAR_SPACE_LINES};
        assert_int_equal(takes(g, schema, &o, texts[i].text), texts[i].lines);
        o.space = GRAMMAR_SPACE_ONE;
        assert_int_equal(takes(g, schema, &o, texts[i].text), texts[i].one);
        o.space = GRAMMAR_SPACE_NONE;
        assert_int_equal(takes(g, schema, &o, texts[i].text), texts[i].none);
    }
    struct buf text = {0};
    assert_int_equal(buf_add_str(&text, "{\n"), FATHOM_OK);
    for (int i = 0; i < 8; i++) assert_int_equal(buf_add_char(&text, ' '), FATHOM_OK);
    size_t n = text.len;
    assert_int_equal(buf_add_str(&text, "\"a\":[]}"), FATHOM_OK);
    assert_true(takes(g, schema, NULL, buf_str(&text)));
    text.data[n - 1] = '\0';
    struct buf longer = {0};
    assert_int_equal(buf_printf(&longer, "%s   \"a\":[]}", text.data), FATHOM_OK);
    assert_false(takes(g, schema, NULL, buf_str(&longer)));
    buf_free(&text);
    buf_free(&longer);
}

/* Integers of every bound and sign, by enumeration. */
static void test_integer_bounds(void **state)
{
    const struct grammar_data *g = *state;
    static const int bounds[] = {-1000, -999, -101, -100, -99, -11, -10, -9,  -1,  0,
                                 1,     8,    9,    10,   11,  99,  100, 101, 998, 1000};
    uint64_t rng = 4;
    for (int i = 0; i < 60; i++) {
        int lo = bounds[rng_below(&rng, 20)], hi = bounds[rng_below(&rng, 20)];
        int multiple = (int)rng_below(&rng, 4) ? 1 : (int)rng_below(&rng, 12) + 2;
        bool strict = rng_below(&rng, 2);
        char schema[160];
        if (lo > hi) continue;
        (void)snprintf(schema, sizeof schema,
                       "{\"type\": [\"integer\", \"null\"], \"%s\": %d, \"maximum\": %d, "
                       "\"multipleOf\": %d}",
                       strict ? "exclusiveMinimum" : "minimum", lo, hi, multiple);
        struct grammar *grammar = grammar_of_schema(g, schema, NULL);
        for (int x = -1200; x <= 1200; x++) {
            char text[16];
            int n = snprintf(text, sizeof text, "%d", x);
            bool in = x >= lo + strict && x <= hi && x % multiple == 0;
            if (matcher_takes(g, grammar, text, (size_t)n) != in) fail_msg("%s: %s", schema, text);
        }
        grammar_release(grammar);
    }
}

/* Decimals of every bound: hundredths, by enumeration, in two spellings. */
static void test_number_bounds(void **state)
{
    const struct grammar_data *g = *state;
    uint64_t rng = 6;
    for (int i = 0; i < 60; i++) {
        int lo = (int)rng_below(&rng, 600) - 300, hi = lo + (int)rng_below(&rng, 300);
        bool above = rng_below(&rng, 2), below = rng_below(&rng, 2);
        char schema[160], text[16];
        (void)snprintf(schema, sizeof schema,
                       "{\"type\": [\"number\", \"null\"], \"%s\": %s%d.%02d, \"%s\": %s%d.%02d}",
                       above ? "exclusiveMinimum" : "minimum", lo < 0 ? "-" : "", abs(lo) / 100,
                       abs(lo) % 100, below ? "exclusiveMaximum" : "maximum", hi < 0 ? "-" : "",
                       abs(hi) / 100, abs(hi) % 100);
        struct grammar *grammar = grammar_of_schema(g, schema, NULL);
        for (int x = -400; x <= 700; x++) {
            bool in = x >= lo + above && x <= hi - below;
            for (int extra = 0; extra < 2; extra++) {
                int n = snprintf(text, sizeof text, "%s%d.%02d%s", x < 0 ? "-" : "", abs(x) / 100,
                                 abs(x) % 100, extra ? "0" : "");
                if (matcher_takes(g, grammar, text, (size_t)n) == in) continue;
                fail_msg("%s: %s", schema, text);
            }
            if (x % 100 != 0) continue;
            int n = snprintf(text, sizeof text, "%d", x / 100);
            if (matcher_takes(g, grammar, text, (size_t)n) != in) fail_msg("%s: %s", schema, text);
        }
        grammar_release(grammar);
    }
}

/* Names that share beginnings, members in and out: every subset in order, and no other. */
static void test_optional_members(void **state)
{
    const struct grammar_data *g = *state;
    static const char *const names[] = {"a", "ab", "abc", "b", "ba", "c"};
    struct grammar *grammar = grammar_of_schema(
        g,
        "{\"type\": \"object\", \"properties\": {\"a\": {}, \"ab\": {}, \"abc\": {}, \"b\": {}, "
        "\"ba\": {}, \"c\": {}}, \"required\": [\"abc\"], \"minProperties\": 2, "
        "\"maxProperties\": 4}",
        NULL);
    for (unsigned set = 0; set < 64; set++) {
        struct buf text = {0};
        int n = 0;
        for (unsigned i = 0; i < 6; i++) {
            if (!(set >> i & 1)) continue;
            assert_int_equal(buf_printf(&text, "%s\"%s\": 1", n++ ? ", " : "{", names[i]), 0);
        }
        if (n == 0) assert_int_equal(buf_add_char(&text, '{'), FATHOM_OK);
        assert_int_equal(buf_add_char(&text, '}'), FATHOM_OK);
        bool in = (set >> 2 & 1) && n >= 2 && n <= 4;
        if (matcher_takes(g, grammar, text.data, text.len) != in) fail_msg("%s", text.data);
        buf_free(&text);
    }
    grammar_release(grammar);
}

/* A schema of many members and definitions stays small and quick enough to compile in a test. */
static void test_large(void **state)
{
    const struct grammar_data *g = *state;
    struct buf schema = {0}, text = {0};
    assert_int_equal(buf_add_str(&schema, "{\"type\": \"object\", \"properties\": {"), FATHOM_OK);
    for (int i = 0; i < 300; i++) {
        assert_int_equal(buf_printf(&schema,
                                    "%s\"member_%d\": {\"type\": \"object\", \"properties\": "
                                    "{\"value_%d\": {\"type\": \"string\", \"maxLength\": %d}}}",
                                    i ? ", " : "", i, i, i),
                         FATHOM_OK);
    }
    assert_int_equal(buf_add_str(&schema, "}}"), FATHOM_OK);
    struct grammar *grammar = grammar_of_schema(g, buf_str(&schema), NULL);
    assert_true(grammar_n_byte(grammar) < 8 << 20);
    assert_int_equal(
        buf_add_str(&text, "{\"member_7\": {}, \"member_299\": {\"value_299\": \"x\"}}"),
        FATHOM_OK);
    assert_true(matcher_takes(g, grammar, text.data, text.len));
    struct matcher *m = matcher_of(g, grammar);
    assert_int_equal(matcher_accept_bytes(m, "{\"member_", 9), FATHOM_OK);
    assert_true(mask_is_exact(g, grammar, m, 0, 1));
    matcher_destroy(m);
    grammar_release(grammar);
    buf_free(&schema);
    buf_free(&text);
}

static void test_failing_allocations(void **state)
{
    const struct grammar_data *g = *state;
    json_t *schema = json_tree_of(
        "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\", \"minimum\": 3, "
        "\"multipleOf\": 2}, \"b\": {\"anyOf\": [{\"type\": \"string\", \"pattern\": \"^x+$\"}, "
        "{\"enum\": [1, \"y\", [2]]}]}, \"c\": {\"type\": \"array\", \"items\": {\"$ref\": \"#\"}},"
        " \"d\": {\"allOf\": [{\"maxLength\": 3}, {\"format\": \"date\"}]}, \"u\": {\"type\": "
        "\"array\","
        " \"uniqueItems\": true, \"items\": {\"enum\": [1, 2, 3, 4, 5, 6, 7]}}}, \"required\": "
        "[\"a\", \"e\"], \"patternProperties\": {\"^p\": {}}, \"propertyNames\": {\"maxLength\": "
        "9}, \"additionalProperties\": {\"type\": \"number\", \"maximum\": 1.5}, "
        "\"minProperties\": 3}");
    for (long n = 0;; n += 1 + n / 50) {
        struct grammar *grammar = NULL;
        mem_fail_after(n);
        fathom_err err = grammar_from_schema(&grammar, g->v, schema, NULL, NULL);
        bool hit = mem_fail_hit();
        mem_fail_after(-1);
        grammar_release(grammar);
        if (!hit) {
            assert_int_equal(err, FATHOM_OK);
            break;
        }
        assert_int_equal(err, FATHOM_ENOMEM);
        assert_null(grammar);
    }
    json_decref(schema);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),      cmocka_unit_test(test_many_long_names),
        cmocka_unit_test(test_lenient),       cmocka_unit_test(test_unique),
        cmocka_unit_test(test_unknown_words), cmocka_unit_test(test_open_objects),
        cmocka_unit_test(test_space),         cmocka_unit_test(test_integer_bounds),
        cmocka_unit_test(test_number_bounds), cmocka_unit_test(test_optional_members),
        cmocka_unit_test(test_large),         cmocka_unit_test(test_failing_allocations)};
    json_set_alloc_funcs(mem_alloc, mem_free);
    return cmocka_run_group_tests(tests, grammar_data_set_up_pilot, grammar_data_tear_down);
}
