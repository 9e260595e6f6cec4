/* test_engine_pages.c - what an engine without a model tells other servers that ask it for pages */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/log.h"
#include "comm/page_peers.h"
#include "support/answers.h"
#include "support/null_runner.h"
#include "support/patience.h"

enum { N_PROMPT = 300 };

/* How long the server says that it is busy: it is asked for a page that nobody has. */
static uint64_t busy_us_of(struct page_peers *p, uint32_t place)
{
    struct page_source *s = page_peers_source(p);
    const struct tier_name nothing = {.key = {1, 2}, .n_id = KV_PAGE_TOKENS};
    unsigned char page[NULL_PAGE_BYTES];
    uint64_t busy_us = 0;
    assert_int_equal(s->ops->read(s, 0, place, &nothing, page, &busy_us, NULL), TIER_NOT_YET);
    return busy_us;
}

/* Who waits for a page that will never be there waits as long as the server says that it is busy:
 * with nothing to compute and no page on its way it is not, however long it has been so. */
static void a_server_at_rest_is_not_busy(void **state)
{
    (void)state;
    static struct answer answer;
    struct null_gate gate;
    int32_t prompt[N_PROMPT];
    uint32_t place;
    fathom_engine *e = NULL;
    struct page_peers *peers;
    const fathom_transfer transfer = {.gives = true, .host = "127.0.0.1"};
    const struct null_engine_options o = {.n_vocab = 1000,
                                          .max_model_len = 6 * KV_PAGE_TOKENS,
                                          .max_num_seqs = 1,
                                          .max_num_batched_tokens = 2 * KV_PAGE_TOKENS,
                                          .max_queued = 1,
                                          .offload = {.n_ram_page = TIERS_MIN_RAM,
                                                      .page_bytes = NULL_PAGE_BYTES,
                                                      .transfer = &transfer},
                                          .runner = {.n_page = 6, .step_us = 3000, .gate = &gate}};
    const struct page_peers_config c = {.self = {.page_bytes = NULL_PAGE_BYTES, .id = "b"},
                                        .n_lane = 1};
    null_gate_init(&gate);
    assert_int_equal(null_engine_open(&e, &o, NULL), FATHOM_OK);
    null_gate_open(&gate);
    assert_int_equal(page_peers_create(&peers, &c, NULL), FATHOM_OK);
    const uint16_t port = fathom_get_info(e)->pages.port;
    assert_int_equal(page_peers_place(peers, "127.0.0.1", port, &place, NULL), FATHOM_OK);
    assert_int_equal(busy_us_of(peers, place), 0);
    for (int32_t i = 0; i < N_PROMPT; i++) prompt[i] = 2 + i;
    fathom_request r = {.prompt = prompt, .n_prompt = N_PROMPT, .pages.lent = true};
    fathom_sampling_init(&r.sampling);
    r.sampling.max_tokens = 1;
    for (int k = 0; k < 2; k++) { /* a prompt of unknown cost, and one of a known one */
        prompt[0] = 1000 - 1 - k;
        null_gate_shut(&gate);
        answer_ask(e, &answer, &r);
        null_gate_wait(&gate);
        uint64_t end_us = 0;
        while (busy_us_of(peers, place) == 0) assert_true(keep_waiting(&end_us));
        null_gate_open(&gate);
        answers_wait(e, 1);
        end_us = 0;
        while (busy_us_of(peers, place) > 0) assert_true(keep_waiting(&end_us));
    }
    page_peers_destroy(peers);
    fathom_close(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_server_at_rest_is_not_busy)};
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
