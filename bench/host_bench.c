/* bench_host [STREAMS STEP_US TOKENS [API]] - what a streamed token costs the host, the model left
 * out
 *
 * The real engine and the real HTTP server over a runner that computes nothing and takes STEP_US a
 * step; a child process reads STREAMS streamed chats of TOKENS tokens. The processor time that the
 * server's process takes for one token is what is left of the model's budget on the host. One line
 * a case,
 *
 *   bench=host api=.. streams=.. step_us=.. tok_s=.. us_per_token=.. engine=.. poll=.. http=..
 * other=..
 *
 * in microseconds of processor time a token: `engine` plans, builds batches, commits; `poll` makes
 * text and JSON; `http` sends it; `other` takes requests in, once a stream. A step of 0 us shows
 * the most that the host can do: several tokens then share one piece of a stream. */
#include <arpa/inet.h>
#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "support/null_server.h"

enum { MAX_STREAMS = 2048, PROMPT_ROOM = 64 };

/* How an API is asked for n tokens, and how its streams end. */
struct api {
    const char *name;
    const char *path;
    const char *body; /* with %u for the tokens, %u for the seed */
    const char *end;
};

#define SAME "\"model\":\"m\",\"stream\":true,\"ignore_eos\":true,"
#define MESSAGES "\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]"

static const struct api apis[] = {
    {"chat", "/v1/chat/completions", "{" SAME MESSAGES ",\"max_tokens\":%u,\"seed\":%u}",
     "data: [DONE]"},
    {"responses", "/v1/responses",
     "{" SAME "\"input\":\"hello\",\"store\":false,\"max_output_tokens\":%u,\"seed\":%u}",
     "event: response.incomplete"},
    {"messages", "/v1/messages", "{" SAME MESSAGES ",\"max_tokens\":%u,\"seed\":%u}",
     "event: message_stop"},
};

enum { N_API = sizeof apis / sizeof apis[0] };

struct load {
    uint32_t n_stream;
    uint32_t step_us;
    uint32_t n_token;
    const struct api *api;
};

static _Noreturn void die(const char *what, const fathom_diag *d)
{
    fprintf(stderr, "bench_host: %s: %s\n", what, d ? d->text : "failed");
    exit(1);
}

/* ---- the clients, a process of their own ---------------------------------------------------- */

static int open_stream(uint16_t port, uint32_t i, const struct load *l)
{
    char body[256], request[512];
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int n_body = snprintf(body, sizeof body, l->api->body, l->n_token, i);
    int n = snprintf(request, sizeof request,
                     "POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                     "Content-Length: %d\r\n\r\n%s",
                     l->api->path, n_body, body);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to) != 0) die("connect", NULL);
    if (write(fd, request, (size_t)n) != n) die("send", NULL);
    return fd;
}

/* Reads to the end of every stream; returns 0 when each ended as it should. */
static int read_streams(uint16_t port, const struct load *l)
{
    static struct pollfd polls[MAX_STREAMS];
    static char bytes[65536];
    uint32_t n_open = l->n_stream, n_whole = 0;
    for (uint32_t i = 0; i < l->n_stream; i++) {
        polls[i] = (struct pollfd){.fd = open_stream(port, i, l), .events = POLLIN};
    }
    while (n_open > 0) {
        if (poll(polls, l->n_stream, 30000) <= 0) return 1;
        for (uint32_t i = 0; i < l->n_stream; i++) {
            if (polls[i].fd < 0 || !polls[i].revents) continue;
            ssize_t n = read(polls[i].fd, bytes, sizeof bytes - 1);
            if (n > 0) {
                bytes[n] = '\0';
                n_whole += strstr(bytes, l->api->end) != NULL;
                continue;
            }
            (void)close(polls[i].fd);
            polls[i].fd = -1;
            n_open--;
        }
    }
    return n_whole == l->n_stream ? 0 : 1;
}

/* Forked before there is any thread; reads the port from a pipe. */
static pid_t start_clients(const struct load *l, int *pipe_fd)
{
    int ends[2];
    uint16_t port;
    if (pipe(ends) != 0) die("pipe", NULL);
    pid_t child = fork();
    if (child < 0) die("fork", NULL);
    if (child > 0) {
        (void)close(ends[0]);
        *pipe_fd = ends[1];
        return child;
    }
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)close(ends[1]);
    if (read(ends[0], &port, sizeof port) != sizeof port) _exit(1);
    _exit(read_streams(port, l));
}

/* ---- processor time ------------------------------------------------------------------------- */

enum stage { STAGE_ENGINE, STAGE_POLL, STAGE_HTTP, STAGE_OTHER, STAGE_COUNT };

struct times {
    double us[STAGE_COUNT];
    double total_us;
};

static enum stage stage_of(const char *tid)
{
    char path[320], name[32] = "";
    (void)snprintf(path, sizeof path, "/proc/self/task/%s/comm", tid);
    FILE *f = fopen(path, "re");
    if (f && !fgets(name, sizeof name, f)) name[0] = '\0';
    if (f) (void)fclose(f);
    if (strncmp(name, "engine", 6) == 0) return STAGE_ENGINE;
    if (strncmp(name, "poll", 4) == 0) return STAGE_POLL;
    return strncmp(name, "http", 4) == 0 ? STAGE_HTTP : STAGE_OTHER;
}

static double clock_us(clockid_t clock)
{
    struct timespec t = {0};
    (void)clock_gettime(clock, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* The kernel's number for the processor clock of a thread of this process. */
static clockid_t thread_clock(const char *tid)
{
    enum { PER_THREAD = 4, SCHEDULED = 2 };
    return (clockid_t)(~(unsigned)strtoul(tid, NULL, 10) << 3 | PER_THREAD | SCHEDULED);
}

static struct times take_times(void)
{
    struct times t = {.total_us = clock_us(CLOCK_PROCESS_CPUTIME_ID)};
    const struct dirent *entry;
    DIR *dir = opendir("/proc/self/task");
    if (!dir) die("/proc/self/task", NULL);
    while ((entry = readdir(dir))) {
        if (entry->d_name[0] == '.') continue;
        t.us[stage_of(entry->d_name)] += clock_us(thread_clock(entry->d_name));
    }
    (void)closedir(dir);
    return t;
}

/* ---- a case --------------------------------------------------------------------------------- */

static void open_server(struct null_server *s, const struct load *l)
{
    uint32_t max_len = PROMPT_ROOM + l->n_token;
    const struct null_engine_options e = {
        .max_model_len = max_len,
        .max_num_seqs = l->n_stream,
        .max_num_batched_tokens = 8192,
        .max_queued = l->n_stream,
        .runner = {.n_page = l->n_stream * (max_len / 64 + 1),
                   .step_us = l->step_us,
                   .skip_attention = true},
    };
    fathom_diag d = {{0}};
    if (null_server_open(s, &e, NULL, &d) != FATHOM_OK) die("server", &d);
}

static void run_case(const struct load *l)
{
    static const char *const names[] = {"engine", "poll", "http", "other"};
    int port_fd = -1, status = 1;
    pid_t clients = start_clients(l, &port_fd);
    struct null_server s;
    open_server(&s, l);
    struct times before = take_times();
    uint64_t start_us = clock_now_us();
    if (write(port_fd, &s.port, sizeof s.port) != sizeof s.port) die("clients", NULL);
    (void)close(port_fd);
    if (waitpid(clients, &status, 0) != clients || status != 0) die("a stream", NULL);
    double seconds = (double)(clock_now_us() - start_us) * 1e-6;
    struct times after = take_times();
    double n = (double)l->n_stream * l->n_token;
    printf("bench=host api=%s streams=%u step_us=%u tok_s=%.0f us_per_token=%.2f", l->api->name,
           l->n_stream, l->step_us, n / seconds, (after.total_us - before.total_us) / n);
    for (int i = 0; i < STAGE_COUNT; i++) {
        printf(" %s=%.2f", names[i], (after.us[i] - before.us[i]) / n);
    }
    printf("\n");
    (void)fflush(stdout);
    null_server_close(&s);
}

static const struct api *find_api(const char *name)
{
    for (int i = 0; i < N_API; i++) {
        if (strcmp(apis[i].name, name) == 0) return &apis[i];
    }
    die("API", NULL);
}

int main(int argc, char **argv)
{
    static const struct load cases[] = {
        {1, 1000, 2000, &apis[0]},    {64, 10000, 400, &apis[0]}, {256, 20000, 200, &apis[0]},
        {1024, 50000, 100, &apis[0]}, {64, 0, 4000, &apis[0]},    {256, 20000, 200, &apis[1]},
        {256, 20000, 200, &apis[2]},  {64, 0, 4000, &apis[1]},    {64, 0, 4000, &apis[2]}};
    log_set_level(LOG_LEVEL_ERROR);
    if (argc > 3) {
        const struct load l = {
            (uint32_t)strtoul(argv[1], NULL, 10), (uint32_t)strtoul(argv[2], NULL, 10),
            (uint32_t)strtoul(argv[3], NULL, 10), find_api(argc > 4 ? argv[4] : "chat")};
        if (l.n_stream == 0 || l.n_stream > MAX_STREAMS) die("STREAMS", NULL);
        run_case(&l);
        return 0;
    }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) run_case(&cases[i]);
    return 0;
}
