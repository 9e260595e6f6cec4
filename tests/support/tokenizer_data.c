/* tokenizer_data.c - tokenizers and texts */
#include "support/tokenizer_data.h"

#include <string.h>

#include "base/assert.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/rng.h"
#include "base/utf8.h"

#define PATTERN(text)                                                                              \
    {                                                                                              \
        text, sizeof text - 1                                                                      \
    }
const struct pretok_pattern family_patterns[3] = {
    PATTERN("\\p{N}{1,3}"),
    PATTERN("[一-龥\xe3\x81\x80-ゟ゠-ヿ]+"),
    PATTERN("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?"
            "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"),
};

static void add_hex(struct buf *out, const char *hex)
{
    static const char digits[] = "0123456789abcdef";
    for (; *hex; hex += 2) {
        ptrdiff_t high = strchr(digits, hex[0]) - digits, low = strchr(digits, hex[1]) - digits;
        ASSERT(!buf_add_char(out, (char)(high << 4 | low)));
    }
}

static void read_vector(struct vector *v, const char *line, size_t n)
{
    fathom_diag d = {""};
    memset(v, 0, sizeof *v);
    ASSERT(!json_read(line, n, "vector", &v->tree, &d));
    const json_t *text = json_object_get(v->tree, "text");
    const char *hex = json_string_value(json_object_get(v->tree, "hex"));
    v->category = json_string_value(json_object_get(v->tree, "cat"));
    v->text = json_string_value(text);
    v->n_text = json_string_length(text);
    if (hex) {
        add_hex(&v->input, hex);
    } else {
        ASSERT(!buf_add(&v->input, v->text, v->n_text));
    }
    size_t i;
    json_t *id;
    json_array_foreach (json_object_get(v->tree, "ids"), i, id) {
        ASSERT(!token_list_add(&v->ids, (int32_t)json_integer_value(id)));
    }
}

struct vector *data_read_vectors(size_t *n)
{
    struct file_map map;
    struct vector *vectors = NULL;
    size_t cap = 0;
    ASSERT(!file_map_open(&map, TOKENIZER_VECTORS("tokenizer_v3_pairs.jsonl"), NULL));
    const char *p = map.data, *end = p + map.size;
    for (*n = 0; p < end; ++*n) {
        const char *line_end = memchr(p, '\n', (size_t)(end - p));
        if (!line_end) line_end = end;
        if (*n == cap) {
            cap = cap ? 2 * cap : 1024;
            vectors = mem_resize(vectors, cap * sizeof *vectors);
            ASSERT(vectors);
        }
        read_vector(&vectors[*n], p, (size_t)(line_end - p));
        p = line_end + 1;
    }
    file_map_close(&map);
    return vectors;
}

void data_free_vectors(struct vector *vectors, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        buf_free(&vectors[i].input);
        token_list_free(&vectors[i].ids);
        json_decref(vectors[i].tree);
    }
    mem_free(vectors);
}

void data_mix(struct buf *out, size_t n_byte)
{
    size_t n;
    struct vector *vectors = data_read_vectors(&n);
    for (size_t i = 0; out->len < n_byte; i = (i + 1) % n) {
        ASSERT(!buf_add(out, vectors[i].text, vectors[i].n_text));
        ASSERT(!buf_add_char(out, '\n'));
    }
    data_free_vectors(vectors, n);
}

/* The byte alphabet's character for a byte. */
static int32_t spell(unsigned byte)
{
    int32_t moved = 0x100;
    for (unsigned b = 0; b < 256; b++) {
        bool plain = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b != 0xad);
        if (b == byte) return plain ? (int32_t)b : moved;
        if (!plain) moved++;
    }
    return -1;
}

void data_small_json(struct buf *out, const char *vocab, const char *merges, const char *added)
{
    ASSERT(!buf_printf(out,
                       "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null,\n"
                       "\"added_tokens\": [%s], \"normalizer\": null,\n"
                       "\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [\n",
                       added));
    for (size_t i = 0; i < 3; i++) {
        (void)buf_add_str(out, "{\"type\": \"Split\", \"pattern\": {\"Regex\": ");
        (void)json_write_string(out, family_patterns[i].text, family_patterns[i].n);
        (void)buf_add_str(out, "}, \"behavior\": \"Isolated\", \"invert\": false},\n");
    }
    (void)buf_add_str(out, "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
                           "\"trim_offsets\": true, \"use_regex\": false}]},\n"
                           "\"post_processor\": null, \"decoder\": {\"type\": \"ByteLevel\"},\n"
                           "\"model\": {\"type\": \"BPE\", \"vocab\": {");
    for (unsigned b = 0; b < 256; b++) {
        char name[4];
        (void)buf_add_str(out, b ? ", " : "");
        (void)json_write_string(out, name, utf8_encode(name, spell(b)));
        (void)buf_printf(out, ": %u", b);
    }
    ASSERT(!buf_printf(out, "%s}, \"merges\": [%s]}}", vocab, merges));
}

void data_random_text(struct buf *out, size_t n, uint64_t *rng)
{
    static const int32_t odd[] = {0x09,   0x0a,   0x0d,   0x20,   0x20,   0x85,   0xa0,   0x180e,
                                  0x2003, 0x2028, 0x200d, 0x3000, 0xfeff, 0x0301, 0x3099, 0x30fb,
                                  0x3097, 0x9fa5, 0x9fa6, 0x4dff, 0x31f0, 0x0e01, 0xfe0f, 0x1b};
    static const struct {
        int32_t first, last;
    } ranges[] = {{'a', 'z'},        {'A', 'Z'},       {'!', '/'},         {'0', '9'},
                  {':', '`'},        {0xa0, 0x24f},    {0x300, 0x52f},     {0x590, 0x17ff},
                  {0x2000, 0x2bff},  {0x2e80, 0x3fff}, {0x3040, 0x30ff},   {0x4e00, 0x9fff},
                  {0xa000, 0xd7ff},  {0xe000, 0xffff}, {0x10000, 0x1ffff}, {0x20000, 0x33fff},
                  {0xe0000, 0xe01ff}};
    for (size_t i = 0; i < n; i++) {
        int32_t cp;
        if (rng_below(rng, 4) == 0) {
            cp = odd[rng_below(rng, sizeof odd / sizeof odd[0])];
        } else {
            size_t r = rng_below(rng, sizeof ranges / sizeof ranges[0]);
            uint64_t width = (uint64_t)(ranges[r].last - ranges[r].first) + 1;
            cp = ranges[r].first + (int32_t)rng_below(rng, width);
        }
        char utf8[4];
        ASSERT(!buf_add(out, utf8, utf8_encode(utf8, cp)));
    }
}
