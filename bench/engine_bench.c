/* bench_engine [MODEL_DIR] [THREADS] - the engine through its public functions, on the cpu backend
 *
 * Prints one line a case, `bench=engine case=... key=value ...`:
 *   bandwidth   reading memory with all workers: what decode is compared with
 *   host_null   what a step costs besides the model: 64 requests that decode over a null runner
 *   turns       a conversation over a null runner: prompt tokens that all turns compute, where
 *               pages of answers are found by the next turn (forms=1), and where rows of prompts
 *               and of answers have other bits (forms=2)
 *   prefill     one prompt of 2048 tokens (or what the model takes), tokens a second
 *   prefix      one prompt of 3000 tokens (likewise) that is new, and the same again
 *   decode      1, 4 and 16 streams of 256 tokens, tokens a second; for one stream the share of the
 *               bandwidth that reading the active weights once a token amounts to
 *   draft       the same for one stream with 0 to 4 drafts of the MTP layer, if there is one
 *   tiers       the prompt of `prefix` again after another has taken its place in the cache, and
 *               all copies have been made: from memory, from disk, from disk by a new process
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/rng.h"
#include "base/thread.h"
#include "checkpoint/checkpoint.h"
#include "fathom/fathom.h"
#include "model/config.h"
#include "model/weights.h"
#include "support/null_runner.h"

enum { N_DECODE = 256, PREFILL_TOKENS = 2048, PREFIX_TOKENS = 3000, MAX_STREAMS = 64 };
enum { N_TURN = 10, TURN_PROMPT = 300, TURN_ANSWER = 300 };

static _Noreturn void die(const char *what, const fathom_diag *d)
{
    fprintf(stderr, "bench_engine: %s: %s\n", what, d ? d->text : "failed");
    exit(1);
}

/* ---- memory bandwidth ----------------------------------------------------------------------- */

enum { READ_BYTES = 512 << 20, READ_PARTS = 64, READ_ROUNDS = 4 };

struct read_job {
    const uint64_t *data;
    uint64_t sums[READ_PARTS];
};

static void read_part(void *arg, size_t part, size_t n_part, unsigned worker)
{
    (void)worker;
    struct read_job *j = arg;
    size_t n = READ_BYTES / sizeof(uint64_t) / n_part;
    const uint64_t *p = j->data + part * n;
    uint64_t s[8] = {0};
    for (size_t i = 0; i + 8 <= n; i += 8) {
        for (int k = 0; k < 8; k++) s[k] += p[i + (size_t)k];
    }
    for (int k = 0; k < 8; k++) j->sums[part] += s[k];
}

/* bytes a second, the best of a few rounds */
static double measure_bandwidth(unsigned n_thread)
{
    struct thread_pool *pool = NULL;
    uint64_t *data = mem_alloc_aligned(64, READ_BYTES);
    if (!data || thread_pool_create(&pool, n_thread, NULL) != FATHOM_OK) die("bandwidth", NULL);
    memset(data, 1, READ_BYTES);
    struct read_job job = {.data = data};
    double best = 0;
    for (int i = 0; i < READ_ROUNDS; i++) {
        uint64_t start_ns = clock_now_ns();
        thread_pool_run(pool, READ_PARTS, read_part, &job);
        double rate = READ_BYTES / ((double)(clock_now_ns() - start_ns) * 1e-9);
        if (rate > best) best = rate;
    }
    uint64_t sum = 0;
    for (int i = 0; i < READ_PARTS; i++) sum += job.sums[i];
    printf("bench=engine case=bandwidth threads=%u gb_s=%.2f check=%" PRIx64 "\n", n_thread,
           best * 1e-9, sum);
    thread_pool_destroy(pool);
    mem_free(data);
    return best;
}

/* ---- runs ----------------------------------------------------------------------------------- */

struct run {
    uint32_t n_stream;
    uint32_t n_prompt;
    uint32_t n_output;
    uint32_t n_vocab;
    uint64_t text; /* equal: the same prompts */
};

struct timing {
    uint64_t first_us; /* the largest submit-to-first-token */
    double decode_s;   /* from the last first token to the last token */
    double total_s;
    uint64_t busy_us;
    uint64_t n_step;
};

static void submit_all(fathom_engine *e, const struct run *r)
{
    int32_t *prompt = mem_alloc_array(r->n_prompt, sizeof *prompt);
    uint64_t rng = r->text;
    if (!prompt) die("prompt", NULL);
    for (uint32_t i = 0; i < r->n_stream; i++) {
        for (uint32_t k = 0; k < r->n_prompt; k++) {
            prompt[k] = (int32_t)rng_below(&rng, r->n_vocab);
        }
        fathom_request q = {.prompt = prompt, .n_prompt = r->n_prompt};
        fathom_sampling_init(&q.sampling);
        q.sampling.temperature = 0;
        q.sampling.max_tokens = r->n_output;
        q.sampling.ignore_eos = true;
        fathom_diag d = {{0}};
        uint64_t id;
        if (fathom_submit(e, &q, &id, &d) != FATHOM_OK) die("submit", &d);
    }
    mem_free(prompt);
}

static struct timing measure(fathom_engine *e, const struct run *r)
{
    struct timing t = {0};
    fathom_stats before, after;
    fathom_event events[MAX_STREAMS];
    uint64_t start_ns = clock_now_ns();
    uint32_t n_done = 0;
    fathom_get_stats(e, &before);
    submit_all(e, r);
    while (n_done < r->n_stream) {
        size_t n = fathom_poll(e, events, MAX_STREAMS, -1);
        for (size_t i = 0; i < n; i++) {
            const fathom_event *v = &events[i];
            if (v->kind == FATHOM_EVENT_TOKEN) continue;
            n_done++;
            if (v->finish != FATHOM_FINISH_LENGTH) die("a request", NULL);
            if (v->first_us > t.first_us) t.first_us = v->first_us;
        }
    }
    uint64_t end_ns = clock_now_ns();
    uint64_t all_first_ns = start_ns + t.first_us * 1000;
    fathom_get_stats(e, &after);
    t.total_s = (double)(end_ns - start_ns) * 1e-9;
    t.decode_s = (double)(end_ns - all_first_ns) * 1e-9;
    t.busy_us = after.busy_us - before.busy_us;
    t.n_step = after.n_step - before.n_step;
    return t;
}

static void bench_host(void)
{
    struct null_engine_options o = {
        .n_vocab = 1000,
        .max_model_len = 4096,
        .max_num_seqs = 64,
        .max_num_batched_tokens = 2048,
        .max_queued = 64,
        .runner = {.n_page = 4096, .skip_attention = true},
    };
    fathom_engine *e = NULL;
    fathom_diag d = {{0}};
    if (null_engine_open(&e, &o, &d) != FATHOM_OK) die("null engine", &d);
    const struct run r = {
        .n_stream = 64, .n_prompt = 32, .n_output = 2000, .n_vocab = 1000, .text = 1};
    struct timing t = measure(e, &r);
    printf("bench=engine case=host_null streams=%u steps=%" PRIu64 " us_per_step=%.2f\n",
           r.n_stream, t.n_step, (double)t.busy_us / (double)t.n_step);
    fathom_close(e);
}

/* Asks for a turn and puts its answer behind the n tokens said so far. */
static void take_turn(fathom_engine *e, int32_t *said, uint32_t n)
{
    fathom_request q = {.prompt = said, .n_prompt = n};
    fathom_sampling_init(&q.sampling);
    q.sampling.temperature = 0;
    q.sampling.max_tokens = TURN_ANSWER;
    q.sampling.ignore_eos = true;
    fathom_diag d = {{0}};
    uint64_t id;
    if (fathom_submit(e, &q, &id, &d) != FATHOM_OK) die("submit", &d);
    fathom_event events[MAX_STREAMS];
    for (bool is_over = false; !is_over;) {
        size_t n_event = fathom_poll(e, events, MAX_STREAMS, -1);
        for (size_t i = 0; i < n_event; i++) {
            if (events[i].kind == FATHOM_EVENT_TOKEN) said[n++] = events[i].token;
            if (events[i].kind == FATHOM_EVENT_FINISH) is_over = true;
        }
    }
}

static void bench_turns(bool two_forms)
{
    enum { MAX_LEN = N_TURN * (TURN_PROMPT + TURN_ANSWER) };
    uint64_t n_computed = 0;
    uint64_t n_asked = 0;
    uint64_t n_fresh = 0;
    uint64_t last = 0;
    struct null_engine_options o = {
        .n_vocab = 1000,
        .max_model_len = MAX_LEN,
        .max_num_seqs = 1,
        .max_num_batched_tokens = 2048,
        .max_queued = 1,
        .runner = {.n_page = 4096,
                   .skip_attention = true,
                   .prompt_form = two_forms,
                   .n_computed = &n_computed},
    };
    static int32_t said[MAX_LEN];
    uint64_t rng = 1;
    uint32_t n = 0;
    fathom_engine *e = NULL;
    fathom_diag d = {{0}};
    if (null_engine_open(&e, &o, &d) != FATHOM_OK) die("null engine", &d);
    for (int i = 0; i < N_TURN; i++) {
        for (uint32_t k = 0; k < TURN_PROMPT; k++) said[n++] = 2 + (int32_t)rng_below(&rng, 998);
        uint64_t before = n_computed;
        take_turn(e, said, n);
        last = n_computed - before - (TURN_ANSWER - 1); /* each draw but the last is computed */
        n_fresh += last;
        n_asked += n;
        n += TURN_ANSWER;
    }
    printf("bench=engine case=turns forms=%d turns=%d prompt=%d answer=%d prompt_tokens=%" PRIu64
           " computed=%" PRIu64 " last_turn=%" PRIu64 "\n",
           1 + two_forms, N_TURN, TURN_PROMPT, TURN_ANSWER, n_asked, n_fresh, last);
    fathom_close(e);
}

/* Bytes of weights that one token of decode reads: all but the embedding's other rows and the
 * experts that are not chosen. */
static double active_bytes(const char *model_dir)
{
    struct checkpoint *c = NULL;
    struct model_config config;
    struct weight_sizes sizes;
    fathom_diag d = {{0}};
    if (checkpoint_open(&c, model_dir, &d) != FATHOM_OK) die("checkpoint", &d);
    if (model_config_load(&config, c, &d) != FATHOM_OK) die("config", &d);
    const struct parallel one = parallel_one();
    weights_measure(&sizes, &config, c, &one);
    double bytes = (double)(sizes.total.bytes - sizes.kind[WEIGHT_EMBED].bytes -
                            sizes.kind[WEIGHT_MTP].bytes - sizes.kind[WEIGHT_EXPERTS].bytes);
    if (config.n_expert) {
        bytes += (double)sizes.kind[WEIGHT_EXPERTS].bytes * config.n_expert_used / config.n_expert;
    }
    checkpoint_close(c);
    return bytes;
}

static void bench_prefill(fathom_engine *e, unsigned n_thread)
{
    const fathom_info *info = fathom_get_info(e);
    uint32_t n_prompt = PREFILL_TOKENS;
    if (n_prompt > info->max_model_len / 2) n_prompt = info->max_model_len / 2;
    struct run r = {1, n_prompt, 1, info->n_vocab, 1};
    (void)measure(e, &r); /* warm caches and worker threads */
    r.text = 2;
    struct timing t = measure(e, &r);
    printf("bench=engine case=prefill prompt=%u threads=%u ttft_ms=%.2f tok_s=%.1f\n", r.n_prompt,
           n_thread, (double)t.first_us * 1e-3, r.n_prompt / ((double)t.first_us * 1e-6));

    n_prompt = PREFIX_TOKENS;
    if (n_prompt > info->max_model_len - 1) n_prompt = info->max_model_len - 1;
    r = (struct run){1, n_prompt, 1, info->n_vocab, 3};
    struct timing fresh = measure(e, &r);
    t = measure(e, &r);
    printf("bench=engine case=prefix prompt=%u threads=%u ttft_ms=%.2f again_ms=%.2f faster=%.1f\n",
           r.n_prompt, n_thread, (double)fresh.first_us * 1e-3, (double)t.first_us * 1e-3,
           (double)fresh.first_us / (double)t.first_us);
}

static fathom_engine *open_engine(const fathom_options *o)
{
    fathom_engine *e = NULL;
    fathom_diag d = {{0}};
    if (fathom_open(&e, o, &d) != FATHOM_OK) die("open", &d);
    return e;
}

static void bench_model(const char *model_dir, unsigned n_thread, double bandwidth)
{
    fathom_options o = {.model_dir = model_dir,
                        .backend = FATHOM_BACKEND_CPU,
                        .n_thread = n_thread,
                        .max_num_seqs = 16,
                        .kv_cache_bytes = (uint64_t)512 << 20};
    uint64_t start_us = clock_now_us();
    fathom_engine *e = open_engine(&o);
    const fathom_info *info = fathom_get_info(e);
    printf("bench=engine case=open backend=%s ready_ms=%.1f weights_mb=%.1f\n", info->backend,
           (double)(clock_now_us() - start_us) * 1e-3, (double)info->weights_bytes * 1e-6);

    bench_prefill(e, n_thread);
    double bytes = active_bytes(model_dir);
    const uint32_t streams[] = {1, 4, 16};
    for (size_t i = 0; i < sizeof streams / sizeof streams[0]; i++) {
        const struct run r = {streams[i], 32, N_DECODE, info->n_vocab, 4};
        struct timing t = measure(e, &r);
        double rate = streams[i] * (double)(N_DECODE - 1) / t.decode_s;
        printf("bench=engine case=decode streams=%u threads=%u tok_s=%.1f us_per_step=%.1f",
               streams[i], n_thread, rate, (double)t.busy_us / (double)t.n_step);
        if (streams[i] == 1)
            printf(" gb_s=%.2f share=%.3f", rate * bytes * 1e-9, rate * bytes / bandwidth);
        printf("\n");
    }
    fathom_close(e);
}

/* Until all that is worth keeping is in memory and, with one, on disk. */
static void settle(fathom_engine *e)
{
    fathom_stats s;
    do {
        clock_sleep_us(20000);
        fathom_get_stats(e, &s);
    } while (s.tiers.n_uncopied > 0 || s.tiers.n_unwritten > 0);
}

static void print_again(const char *tier, const struct timing *fresh, const struct timing *again,
                        uint32_t n_prompt, uint64_t page_bytes)
{
    double bytes = (double)((n_prompt - 1) / 64) * (double)page_bytes;
    printf("bench=engine case=tiers tier=%s prompt=%u fresh_ms=%.2f again_ms=%.2f faster=%.1f "
           "gb_s=%.2f\n",
           tier, n_prompt, (double)fresh->first_us * 1e-3, (double)again->first_us * 1e-3,
           (double)fresh->first_us / (double)again->first_us,
           bytes / ((double)again->first_us * 1e3));
}

/* One request at a time has room in the cache. Without memory the disk is all there is. */
static void bench_tiers(const char *model_dir, unsigned n_thread, const char *dir)
{
    fathom_options o = {.model_dir = model_dir,
                        .backend = FATHOM_BACKEND_CPU,
                        .n_thread = n_thread,
                        .max_num_seqs = 1,
                        .max_model_len = PREFIX_TOKENS + 64,
                        .offload_ram_bytes = dir ? 0 : (uint64_t)512 << 20,
                        .offload_dir = dir,
                        .offload_dir_bytes = dir ? (uint64_t)512 << 20 : 0};
    fathom_engine *e = open_engine(&o);
    struct run r = {1, PREFIX_TOKENS, 1, fathom_get_info(e)->n_vocab, 1};
    (void)measure(e, &r); /* warm caches and worker threads */
    r.text = 2;
    struct timing fresh = measure(e, &r);
    r.text = 3;
    (void)measure(e, &r);
    settle(e);
    r.text = 2;
    struct timing again = measure(e, &r);
    fathom_stats s;
    fathom_get_stats(e, &s);
    print_again(dir ? "disk" : "ram", &fresh, &again, r.n_prompt, s.tiers.page_bytes);
    fathom_close(e);
    if (!dir) return;
    e = open_engine(&o);
    r.text = 4;
    (void)measure(e, &r);
    r.text = 2;
    again = measure(e, &r);
    print_again("restart", &fresh, &again, r.n_prompt, s.tiers.page_bytes);
    fathom_close(e);
}

static void bench_tiers_in(const char *model_dir, unsigned n_thread, const char *parent)
{
    char dir[1024];
    char file[1100];
    bench_tiers(model_dir, n_thread, NULL);
    (void)snprintf(dir, sizeof dir, "%s/fathom-bench-XXXXXX", parent);
    if (!mkdtemp(dir)) die("a directory", NULL);
    bench_tiers(model_dir, n_thread, dir);
    (void)snprintf(file, sizeof file, "%s/kv.index", dir);
    (void)unlink(file);
    (void)snprintf(file, sizeof file, "%s/kv.pages", dir);
    (void)unlink(file);
    (void)rmdir(dir);
}

static bool has_mtp(const char *model_dir)
{
    struct checkpoint *c = NULL;
    struct model_config config;
    fathom_diag d = {{0}};
    if (checkpoint_open(&c, model_dir, &d) != FATHOM_OK) die("checkpoint", &d);
    if (model_config_load(&config, c, &d) != FATHOM_OK) die("config", &d);
    bool has = config.n_mtp > 0 && weights_count_mtp(c, &config) == config.n_mtp;
    checkpoint_close(c);
    return has;
}

static void bench_drafts(const char *model_dir, unsigned n_thread, uint32_t n_draft)
{
    fathom_options o = {.model_dir = model_dir,
                        .backend = FATHOM_BACKEND_CPU,
                        .n_thread = n_thread,
                        .max_num_seqs = 1,
                        .n_draft = n_draft};
    fathom_engine *e = open_engine(&o);
    struct run r = {1, 32, N_DECODE, fathom_get_info(e)->n_vocab, 1};
    (void)measure(e, &r); /* warm caches and worker threads */
    double seconds = 0;
    uint64_t n_step = 0;
    for (r.text = 2; r.text < 8; r.text++) {
        struct timing t = measure(e, &r);
        seconds += t.decode_s;
        n_step += t.n_step - 1;
    }
    double n_token = 6.0 * (N_DECODE - 1);
    printf("bench=engine case=draft drafts=%u threads=%u tok_s=%.1f tokens_per_step=%.2f\n",
           n_draft, n_thread, n_token / seconds, n_token / (double)n_step);
    fathom_close(e);
}

int main(int argc, char **argv)
{
    const char *model_dir = argc > 1 ? argv[1] : FATHOM_SOURCE_DIR "/models/pilot";
    unsigned n_thread = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : os_n_cpu();
    double bandwidth = measure_bandwidth(n_thread);
    bench_host();
    bench_turns(false);
    bench_turns(true);
    bench_model(model_dir, n_thread, bandwidth);
    for (uint32_t n = 0; n <= FATHOM_DRAFT_MAX && has_mtp(model_dir); n++) {
        bench_drafts(model_dir, n_thread, n);
    }
    const char *parent = getenv("TMPDIR");
    bench_tiers_in(model_dir, n_thread, parent ? parent : "/tmp");
    return 0;
}
