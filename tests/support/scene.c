/* scene.c - one request and its answer without a server */
#include "support/scene.h"

#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "base/mem.h"
#include "support/json_tree.h"

#define TOKENIZER FATHOM_SOURCE_DIR "/tests/data/server/tokenizer.json"

enum { EOS = 1, BYTE_0 = 20 };

static struct tokenizer *tokenizer;
static const struct chat_style STYLE = {.encoding = CHAT_ENCODING_V32,
                                        .tool_markup = CHAT_ENCODING_V32,
                                        .parse_tools = true,
                                        .parse_reasoning = true};
static const fathom_info INFO = {
    .n_vocab = 276, .max_model_len = 4096, .bos_id = 0, .eos_ids = {EOS}, .n_eos = 1};

int scene_setup(void **state)
{
    (void)state;
    fathom_diag d = {{0}};
    if (tokenizer_open_file(&tokenizer, TOKENIZER, &d)) fail_msg("%s", d.text);
    return 0;
}

int scene_teardown(void **state)
{
    (void)state;
    tokenizer_close(tokenizer);
    return 0;
}

static fathom_err recall_nothing(void *arg, const char *id, json_t *items, struct api_error *e)
{
    (void)arg, (void)items;
    return api_error_set(e, 400, NULL, NULL, "there is no response %s", id);
}

fathom_err scene_try(struct scene *s, enum api_kind api, const char *body, bool thinking)
{
    const struct api_bounds bounds = {.n_vocab = 276, .recall = recall_nothing};
    struct api_error e = {0};
    memset(s, 0, sizeof *s);
    fathom_err err = api_request_parse(&s->request, api, body, strlen(body), &bounds, &e);
    if (err == FATHOM_ENOMEM) return err;
    if (err) fail_msg("%s", e.diag.text);
    for (size_t i = 0; i < 4; i++) {
        err = tokenizer_encode(tokenizer, "prompt", 6, TOKENIZER_MARKUP_ON, &s->prompts[i]);
        if (err) return err;
    }
    struct answer_setup setup = {.form = answer_form_of(s->request.api),
                                 .request = &s->request,
                                 .prompts = s->prompts,
                                 .tokenizer = tokenizer,
                                 .style = &STYLE,
                                 .info = &INFO,
                                 .model = "m",
                                 .thinking = thinking,
                                 .nonce = 1,
                                 .created = 5};
    return answer_open(&s->answer, &setup);
}

struct scene *scene_open(enum api_kind api, const char *body, bool thinking)
{
    struct scene *s = mem_alloc(sizeof *s);
    assert_non_null(s);
    assert_int_equal(scene_try(s, api, body, thinking), FATHOM_OK);
    return s;
}

void scene_free(struct scene *s)
{
    answer_free(&s->answer);
    api_request_free(&s->request);
    for (size_t i = 0; i < 4; i++) token_list_free(&s->prompts[i]);
}

void scene_close(struct scene *s)
{
    scene_free(s);
    mem_free(s);
}

fathom_err scene_score(struct answer *a, size_t i)
{
    struct token_list ids = {0};
    fathom_err err = tokenizer_encode(tokenizer, "prompt", 6, TOKENIZER_MARKUP_ON, &ids);
    for (size_t k = 1; k < ids.n && !err; k++) {
        fathom_event e = {.kind = FATHOM_EVENT_PROMPT,
                          .token = ids.ids[k],
                          .logprob = -(float)k / 8,
                          .place = 2,
                          .n_top = 2};
        e.top[0] = (fathom_logprob){BYTE_0 + 0xC3, -0.0625f};
        e.top[1] = (fathom_logprob){ids.ids[k], -(float)k / 8};
        err = answer_prompt_token(a, i, &e);
    }
    token_list_free(&ids);
    return err;
}

fathom_err scene_say(struct answer *a, size_t i, const char *text, fathom_finish why)
{
    struct token_list ids = {0};
    bool stopped = false;
    fathom_err err = tokenizer_encode(tokenizer, text, strlen(text), TOKENIZER_MARKUP_ON, &ids);
    for (size_t k = 0; k < ids.n && !stopped && !err; k++) {
        fathom_event e = {.kind = FATHOM_EVENT_TOKEN, .token = ids.ids[k], .logprob = -0.25f};
        e.n_top = 2;
        e.top[0] = (fathom_logprob){ids.ids[k], -0.25f};
        e.top[1] = (fathom_logprob){BYTE_0 + 0xC3, -3.5f};
        err = answer_token(a, i, &e, &stopped);
    }
    token_list_free(&ids);
    if (err) return err;
    fathom_event end = {.kind = FATHOM_EVENT_TOKEN,
                        .token = EOS,
                        .is_stop = true,
                        .logprob = -0.75f,
                        .n_top = 2,
                        .top = {{BYTE_0 + 'c', -0.5f}, {EOS, -0.75f}}};
    if (!stopped && why == FATHOM_FINISH_STOP) {
        err = answer_token(a, i, &end, &stopped);
        if (err) return err;
    }
    fathom_event finish = {.kind = FATHOM_EVENT_FINISH,
                           .finish = stopped ? FATHOM_FINISH_CANCEL : why,
                           .stop_id = why == FATHOM_FINISH_STOP ? EOS : -1,
                           .n_cached = 4};
    return answer_finish(a, i, &finish);
}

const char *scene_out(const struct scene *s)
{
    return buf_str(&s->answer.out);
}

static fathom_err play(struct scene *s, enum api_kind api, const char *body, const char *said)
{
    fathom_err err = scene_try(s, api, body, true);
    if (!err) err = scene_say(&s->answer, 0, said, FATHOM_FINISH_STOP);
    return err ? err : answer_close(&s->answer);
}

void scene_fail_each(enum api_kind api, const char *body, const char *said)
{
    fathom_err err = FATHOM_ENOMEM;
    bool failed = true;
    for (long n = 0; failed; n++) {
        static struct scene s;
        mem_fail_after(n);
        err = play(&s, api, body, said);
        failed = mem_fail_hit();
        mem_fail_after(-1);
        if (failed) assert_int_equal(err, FATHOM_ENOMEM);
        scene_free(&s);
    }
    assert_int_equal(err, FATHOM_OK);
}

struct scene *scene_play(enum api_kind api, const char *body, const char *said, fathom_finish why)
{
    struct scene *s = scene_open(api, body, true);
    assert_int_equal(scene_say(&s->answer, 0, said, why), 0);
    assert_int_equal(answer_close(&s->answer), 0);
    return s;
}

json_t *scene_next_event(const char **at)
{
    char type[80];
    assert_int_equal(sscanf(*at, "event: %79s\n", type), 1);
    const char *data = strstr(*at, "\ndata: ");
    const char *end = data ? strstr(data, "\n\n") : NULL;
    assert_non_null(end);
    json_t *root = json_tree_of_bytes(data + 7, (size_t)(end - data) - 7);
    assert_string_equal(json_string_value(json_object_get(root, "type")), type);
    *at = end + 2;
    return root;
}
