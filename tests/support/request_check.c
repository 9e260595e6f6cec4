/* request_check.c - bodies of requests, parsed and compared */
#include "support/request_check.h"

#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "base/mem.h"
#include "chat/chat.h"
#include "support/json_tree.h"

void check_refused(enum api_kind api, const struct api_bounds *bounds, const char *body,
                   const char *param, const char *message)
{
    struct api_request r;
    struct api_error e = {0};
    fathom_err err = api_request_parse(&r, api, body, strlen(body), bounds, &e);
    if (err != FATHOM_EINVAL || e.status != 400 || strcmp(e.diag.text, message) != 0 ||
        strcmp(e.param, param) != 0) {
        fail_msg("%s\n  gave %d, status %d, param \"%s\": %s\n  not \"%s\": %s", body, err,
                 e.status, e.param, e.diag.text, param, message);
    }
    api_request_free(&r);
}

void check_becomes(struct api_request *r, enum api_kind api, const struct api_bounds *bounds,
                   const char *body, const char *messages)
{
    struct api_error e = {0};
    if (api_request_parse(r, api, body, strlen(body), bounds, &e)) {
        fail_msg("%s: %s", body, e.diag.text);
    }
    json_t *want = json_tree_of(messages);
    if (!json_equal(r->messages, want)) {
        fail_msg("%s\nbecame %s\nnot    %s", body, json_dumps(r->messages, 0), messages);
    }
    json_decref(want);
    assert_int_equal(chat_check_messages(r->messages, NULL), FATHOM_OK);
}

void check_failing_trees(enum api_kind api, const struct api_bounds *bounds, const char *body)
{
    bool failed = true;
    for (long n = 0; failed; n++) {
        struct api_request r;
        struct api_error e = {0};
        mem_fail_after(n);
        fathom_err err = api_request_parse(&r, api, body, strlen(body), bounds, &e);
        failed = mem_fail_hit();
        mem_fail_after(-1);
        assert_true((err != FATHOM_OK) == failed);
        api_request_free(&r);
    }
}
