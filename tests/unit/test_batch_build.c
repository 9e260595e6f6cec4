/* test_batch_build.c - the flat arrays of hand-made plans, and the layout's arithmetic */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "backend/op_sample.h"
#include "base/limits.h"
#include "base/mem.h"
#include "engine/batch_build.h"

static const struct model_limits limits = {
    .max_token = 200, .max_request = 4, .max_context = 5000, .max_logit_row = 8};

struct fixture {
    struct batch_layout l;
    char *host;   /* written */
    char *device; /* holds what the step says is to be copied, and nothing else */
    struct request requests[2];
    int32_t ids[5000];
    uint32_t pages[80];
    struct plan_entry entries[4];
    struct plan plan;
    struct batch batch;
};

static int set_up(void **state)
{
    static struct fixture f;
    memset(&f, 0, sizeof f);
    batch_layout_init(&f.l, &limits, 50);
    f.host = mem_alloc_aligned(256, f.l.n_bytes);
    f.device = mem_alloc_aligned(256, f.l.n_bytes);
    for (int i = 0; i < 5000; i++) f.ids[i] = 7 * i;
    for (uint32_t i = 0; i < 80; i++) f.pages[i] = 500 + i;
    for (int i = 0; i < 2; i++) {
        f.requests[i].ids = f.ids + i;
        f.requests[i].pages = f.pages + 10 * i;
        f.requests[i].n_page = 80 - 10 * (uint32_t)i;
    }
    f.plan.entries = f.entries;
    *state = &f;
    return f.host && f.device ? 0 : -1;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    mem_free(f->host);
    mem_free(f->device);
    return 0;
}

static void add_entry(struct fixture *f, int i, uint32_t first, uint32_t n_token, bool draws)
{
    f->entries[f->plan.n_entry++] = (struct plan_entry){
        .request = &f->requests[i], .first = first, .n_token = n_token, .draws = draws};
    f->plan.n_token += n_token;
    f->plan.n_draw += draws;
    if (first + n_token > f->plan.max_context) f->plan.max_context = first + n_token;
}

/* The batch as a device finds it that is given the step's shape and bytes: nothing in it leads back
 * to where it was written. Returns the bytes. */
static size_t build(struct fixture *f, enum step_pass pass)
{
    struct batch_shape shape;
    memset(f->device, 0x55, f->l.n_bytes);
    size_t n_bytes = batch_build(&f->l, &f->plan, f->host, &shape);
    memcpy(f->device, f->host, n_bytes);
    memset(f->host, 0x55, f->l.n_bytes);
    batch_locate(&f->l, &shape, pass, f->device, &f->batch);
    return n_bytes;
}

static void arrays_neither_overlap_nor_leave_the_block(void **state)
{
    const struct fixture *f = *state;
    const struct batch_layout *l = &f->l;
    const size_t start[] = {l->n_live, l->ids,        l->pos,  l->request,    l->slot,
                            l->first,  l->logit_rows, l->rows, l->page_table, l->bias,
                            l->ban,    l->history,    l->mask, l->n_bytes};
    const size_t bytes[] = {4,
                            200 * 4,
                            200 * 4,
                            200 * 4,
                            200 * 4,
                            5 * 4,
                            8 * 4,
                            8 * sizeof(struct sample_row),
                            (4 + 1) * 79 * 4,
                            4 * LIMIT_LOGIT_BIAS * sizeof(struct sample_bias),
                            4 * BATCH_BAN_MAX * 4,
                            4 * 5000 * 4,
                            4 * 2 * 4};
    assert_int_equal(l->max_page_stride, 79);
    for (size_t i = 0; i < sizeof bytes / sizeof bytes[0]; i++) {
        assert_int_equal(start[i] % 256, 0);
        assert_true(start[i] + bytes[i] <= start[i + 1]);
        assert_true(start[i] + bytes[i] + 256 > start[i + 1]);
    }
}

static void answers_are_counted(void **state)
{
    struct fixture *f = *state;
    add_entry(f, 1, 130, 3, true);
    add_entry(f, 0, 62, 4, false);
    (void)build(f, STEP_MODEL);
    assert_int_equal(*f->batch.n_live, 7);
    assert_int_equal(f->batch.n_answer_token, 7);
    assert_int_equal(f->batch.n_answer_request, 2);
    f->entries[1].is_prompt = true;
    (void)build(f, STEP_MODEL);
    assert_int_equal(f->batch.n_answer_token, 3);
    assert_int_equal(f->batch.n_answer_request, 1);
    f->entries[0].is_prompt = true;
    (void)build(f, STEP_MODEL);
    assert_int_equal(f->batch.n_answer_token, 0);
    assert_int_equal(f->batch.n_answer_request, 0);
}

static void a_chunk_and_a_decode(void **state)
{
    struct fixture *f = *state;
    add_entry(f, 0, 62, 4, false); /* crosses from page 500 to 501 */
    add_entry(f, 1, 130, 1, true);
    size_t n_bytes = build(f, STEP_MODEL);
    const struct batch *b = &f->batch;
    assert_int_equal(b->n_token, 5);
    assert_int_equal(b->n_request, 2);
    assert_int_equal(b->n_logit_row, 1);
    assert_int_equal(b->max_context, 131);
    assert_int_equal(b->page_stride, 32);
    assert_null(b->next_ids);
    const int32_t ids[] = {7 * 62, 7 * 63, 7 * 64, 7 * 65, 7 * 131};
    const int32_t pos[] = {62, 63, 64, 65, 130};
    const int32_t request[] = {0, 0, 0, 0, 1};
    const int32_t slot[] = {500 * 64 + 62, 500 * 64 + 63, 501 * 64, 501 * 64 + 1, 512 * 64 + 2};
    const int32_t first[] = {0, 4, 5};
    assert_memory_equal(b->ids, ids, sizeof ids);
    assert_memory_equal(b->pos, pos, sizeof pos);
    assert_memory_equal(b->request, request, sizeof request);
    assert_memory_equal(b->slot, slot, sizeof slot);
    assert_memory_equal(b->first, first, sizeof first);
    assert_int_equal(b->logit_rows[0], 4);
    const int32_t *table = b->page_table;
    assert_int_equal(table[0], 500);
    assert_int_equal(table[1], 501);
    assert_int_equal(table[32], 510);
    assert_int_equal(table[34], 512);
    assert_int_equal(n_bytes, f->l.page_table + 2 * 32 * 4);
}

static void drafts_have_rows_and_the_draft_layer_arrays(void **state)
{
    struct fixture *f = *state;
    add_entry(f, 0, 0, 5, false);
    add_entry(f, 1, 130, 3, true); /* one known token and two drafts */
    f->entries[1].n_draft = 2;
    f->plan.n_draw += 2;
    build(f, STEP_MODEL);
    const int32_t rows[] = {5, 6, 7};
    assert_int_equal(f->batch.n_logit_row, 3);
    assert_memory_equal(f->batch.logit_rows, rows, sizeof rows);
    assert_int_equal(f->l.next_ids, f->l.pos); /* nothing without the layer */
    struct model_limits with = limits;
    struct batch_layout l;
    with.with_mtp = true;
    batch_layout_init(&l, &with, 50);
    assert_true(l.hidden_rows >= l.next_ids + 200 * 4);
    assert_true(l.pos >= l.hidden_rows + 200 * 4);
    assert_true(l.page_table > l.pos); /* copied with what every step has */
    /* each pass finds the arrays that it has */
    static const struct batch_shape shape = {.n_token = 1, .n_request = 1};
    for (int pass = STEP_MODEL; pass < STEP_PASS_N; pass++) {
        struct batch b;
        batch_locate(&l, &shape, (enum step_pass)pass, f->device, &b);
        assert_ptr_equal(b.next_ids, pass == STEP_MODEL ? NULL : f->device + l.next_ids);
        assert_ptr_equal(b.hidden_rows, pass == STEP_DRAFT_ROWS ? f->device + l.hidden_rows : NULL);
        assert_null(b.drawn);
    }
}

/* Of an entry, prompt tokens not scored before, then what draws. */
static void scored_prompt_tokens_have_rows(void **state)
{
    struct fixture *f = *state;
    add_entry(f, 0, 60, 5, true);
    f->requests[0].n_to_score = 64;
    f->requests[0].n_reached = 62; /* two tokens are computed again */
    f->entries[0].n_score = 2;
    add_entry(f, 1, 130, 1, true);
    f->plan.n_score = 2;
    build(f, STEP_MODEL);
    const int32_t rows[] = {2, 3, 4, 5};
    assert_int_equal(f->batch.n_logit_row, 4);
    assert_memory_equal(f->batch.logit_rows, rows, sizeof rows);
}

static void page_stride_grows_with_the_longest_request(void **state)
{
    struct fixture *f = *state;
    static const uint32_t context[] = {1, 1024, 1025, 2048, 2049, 4096, 4097, 5000};
    static const uint32_t stride[] = {32, 32, 32, 32, 79, 79, 79, 79};
    for (size_t i = 0; i < sizeof context / sizeof context[0]; i++) {
        f->plan = (struct plan){.entries = f->entries};
        add_entry(f, 0, context[i] - 1, 1, true);
        build(f, STEP_MODEL);
        assert_int_equal(f->batch.page_stride, stride[i]);
    }
}

static void pointers_are_the_same_in_every_step(void **state)
{
    struct fixture *f = *state;
    add_entry(f, 0, 0, 200, true);
    build(f, STEP_MODEL);
    struct batch before = f->batch;
    f->plan = (struct plan){.entries = f->entries};
    add_entry(f, 1, 4000, 1, true);
    build(f, STEP_MODEL);
    assert_ptr_equal(f->batch.ids, before.ids);
    assert_ptr_equal(f->batch.slot, before.slot);
    assert_ptr_equal(f->batch.page_table, before.page_table);
    assert_ptr_equal(f->batch.first, before.first);
    assert_ptr_equal(f->batch.logit_rows, before.logit_rows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(arrays_neither_overlap_nor_leave_the_block, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(answers_are_counted, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_chunk_and_a_decode, set_up, tear_down),
        cmocka_unit_test_setup_teardown(drafts_have_rows_and_the_draft_layer_arrays, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(scored_prompt_tokens_have_rows, set_up, tear_down),
        cmocka_unit_test_setup_teardown(page_stride_grows_with_the_longest_request, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(pointers_are_the_same_in_every_step, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
