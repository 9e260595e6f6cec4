/* api_request.c - what a parsed request owns, and its release */
#include "server/api/api_request.h"

#include <string.h>

#include "base/mem.h"

bool api_is_request_id(const char *s)
{
    size_t n = strlen(s);
    if (n == 0 || n > LIMIT_REQUEST_ID_BYTES) return false;
    for (; *s; s++) {
        bool is_letter = (*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z');
        if (!is_letter && !(*s >= '0' && *s <= '9') && !strchr("-_.:", *s)) return false;
    }
    return true;
}

void api_request_drop_body(struct api_request *r)
{
    r->root = r->messages = r->response_format = r->allowed_tools = NULL;
    r->suffix = NULL;
    for (size_t i = 0; i < r->n_prompt; i++) {
        r->prompts[i].text = NULL;
        r->prompts[i].n_text = 0;
    }
    json_arena_destroy(r->body_arena);
    r->body_arena = NULL;
}

void api_request_free(struct api_request *r)
{
    for (size_t i = 0; r->each && i < r->n_prompt; i++) api_request_free(&r->each[i]);
    mem_free(r->each);
    for (size_t i = 0; i < r->n_prompt; i++) mem_free(r->prompts[i].ids);
    mem_free(r->prompts);
    for (size_t i = 0; i < r->n_stop; i++) mem_free(r->stops[i]);
    for (size_t i = 0; i < r->n_bad_word; i++) mem_free(r->bad_words[i]);
    mem_free(r->allowed_ids);
    mem_free(r->resume);
    mem_free(r->ids);
    mem_free(r->model);
    answer_rule_free(&r->rule);
    if (r->responses) {
        buf_free(&r->responses->echo);
        buf_free(&r->responses->items);
        mem_free(r->responses);
    }
    json_arena_destroy(r->body_arena);
    json_arena_destroy(r->kept_arena);
    memset(r, 0, sizeof *r);
}
