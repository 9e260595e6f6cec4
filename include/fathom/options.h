/* options.h - what fathom_open is told: the model, what computes it, and within which limits */
#ifndef FATHOM_OPTIONS_H
#define FATHOM_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A checkpoint linked into the program. */
typedef struct fathom_bundle_file {
    const char *name;
    const unsigned char *data;
    size_t size;
} fathom_bundle_file;

typedef struct fathom_bundle {
    const char *name;
    const fathom_bundle_file *files;
    size_t n_file;
} fathom_bundle;

typedef enum fathom_backend {
    FATHOM_BACKEND_AUTO,
    FATHOM_BACKEND_REF,
    FATHOM_BACKEND_CPU,
    FATHOM_BACKEND_CUDA
} fathom_backend;
typedef enum fathom_act {
    FATHOM_ACT_AUTO,
    FATHOM_ACT_F32,
    FATHOM_ACT_BF16,
    FATHOM_ACT_FP8,
    FATHOM_ACT_INT8
} fathom_act;
typedef enum fathom_head {
    FATHOM_HEAD_AUTO,
    FATHOM_HEAD_STORED,
    FATHOM_HEAD_INT8,
    FATHOM_HEAD_FP8
} fathom_head;
/* How a model is cut over its ranks (docs/parallel.md). */
typedef enum fathom_layout {
    FATHOM_LAYOUT_GIVEN,      /* as world and data_parallel say */
    FATHOM_LAYOUT_AUTO,       /* LATENCY or THROUGHPUT: which is expected to do more of the load */
    FATHOM_LAYOUT_LATENCY,    /* all ranks share every layer */
    FATHOM_LAYOUT_THROUGHPUT, /* each has requests of its own, and experts whole */
} fathom_layout;
typedef enum fathom_kv { FATHOM_KV_AUTO, FATHOM_KV_F32, FATHOM_KV_BF16, FATHOM_KV_FP8 } fathom_kv;

enum { FATHOM_DRAFT_MAX = 4 };

/* What pages go by where both servers have it. */
typedef enum fathom_transport {
    FATHOM_TRANSPORT_TCP,
    FATHOM_TRANSPORT_UCX,          /* fathom_open fails without its library */
    FATHOM_TRANSPORT_UCX_IF_FOUND, /* TCP without it, and a line of the log says so */
} fathom_transport;

/* Pages that servers of one pool give each other (docs/pd.md). */
typedef struct fathom_transfer {
    bool gives;       /* other servers may ask for pages: */
    const char *host; /* at this address, */
    uint16_t port;    /* and port; 0: a free one, fathom_info.pages.port */
    bool takes;       /* requests may have their pages from other servers */
    bool has_secret;  /* without one, servers of this machine only */
    uint64_t secret[2];
    bool any_numerics;     /* of servers that compute other bits too, if they agree */
    const char *engine_id; /* for messages: printable ASCII without blanks, below 64 bytes */
    uint32_t n_lane;       /* connections to each server, 1 to 8; 0: 2 */
    fathom_transport transport;
    uint32_t lease_s;         /* that pages which are lent are kept for; 0: 30 */
    const char *const *peers; /* [n_peer] "host:port": asked for the pages of every prompt */
    uint32_t n_peer;
} fathom_transfer;

/* Whom an engine tells what its prefix cache holds, by vLLM's protocol over ZeroMQ
 * (docs/events.md). Lane i has the ports of lane 0 plus i. */
typedef struct fathom_kv_events {
    const char *endpoint;        /* "tcp://HOST:PORT": events are sent to who subscribes there */
    const char *replay_endpoint; /* who has missed some asks there; NULL: nowhere */
    const char *topic;           /* of all of them */
    uint32_t buffer_steps;       /* batches that are kept for answers, 1 or more */
    uint32_t hwm;                /* batches that wait for one subscriber, 1 or more */
    uint32_t max_queue_size;     /* events that wait to be sent, 1 or more; of a large number
                                    16384 */
} fathom_kv_events;

/* What another host than host 0 knows of host 0. */
typedef struct fathom_host_0 {
    const char *host; /* its address; NULL: this host has not joined it, and */
    const char *why;  /* why not */
    uint16_t inner_port;
    const uint64_t *inner_key; /* [2] */
} fathom_host_0;

/* Hosts that compute one model together (docs/hosts.md). */
typedef struct fathom_hosts {
    uint32_t n_node;     /* 2 to 64 */
    uint32_t node_rank;  /* of this one; host 0 has the engine, the others follow */
    const char *address; /* of host 0, */
    uint16_t port;       /* and port; not read: */
    bool by_pmix;        /* host 0 tells the others where it is, by the launcher of all */
    bool has_token;      /* without one, hosts of this machine only, or that launcher's */
    uint64_t token[2];
    /* requests come to each host, for the lanes that it has; all hosts say the same */
    bool all_serve;
    /* with it, of host 0: where it takes those of the other hosts, and the key that they bring */
    uint16_t inner_port;
    uint64_t inner_key[2];
    /* called by fathom_follow when host 0 is joined, and when it is lost; NULL: nobody asks */
    void (*on_host_0)(void *arg, const fathom_host_0 *h);
    void *on_host_0_arg;
    /* of another host than host 0: once it can be read, that host ends when host 0 does, at latest
     * after so long, and at once while it has not joined; 0: none. The caller's */
    int end_fd;
    uint32_t end_after_ms;
    /* called by fathom_follow when all is loaded, before it joins; NULL: nobody asks */
    void (*on_loaded)(void *arg);
    void *on_loaded_arg;
} fathom_hosts;

/* Where other servers ask an engine for pages. */
typedef struct fathom_pages_at {
    const char *host; /* NULL: nowhere */
    uint16_t port;
    const char *id; /* fathom_transfer.engine_id */
    bool takes;     /* requests may have pages of others */
} fathom_pages_at;

/* What a request has to do with other servers' pages. */
typedef struct fathom_pages_of {
    const char *host; /* who has computed the prompt; NULL: nobody is known to */
    uint16_t port;
    bool needed; /* what that server does not give is not computed here: FATHOM_FINISH_LOST */
    bool lent;   /* another server will ask for the pages of the prompt soon */
    uint64_t hand_over; /* what its request, and this one, are called where both servers have the
                           prompt at once; 0: nothing. When one leaves its pages and the other is
                           lent and draws one token, that is FATHOM_FINISH_UNWANTED */
} fathom_pages_of;

/* What an engine is expected to be asked. */
typedef struct fathom_load {
    uint32_t n_request; /* at once; 0: max_num_seqs, or 64 */
    uint32_t n_input;   /* tokens of each; 0: 1024 */
    uint32_t n_output;  /* 0: 256 */
} fathom_load;

/* fathom_options - a zeroed struct with model_dir or bundle set is valid: 0 means the default. */
typedef struct fathom_options {
    const char *model_dir;       /* resolved directory; or */
    const fathom_bundle *bundle; /* a linked-in checkpoint */
    fathom_backend backend;
    fathom_act act;         /* AUTO: the checkpoint's, on a GPU FP8 if the widths allow */
    fathom_head head;       /* AUTO: on a CPU int8 where that costs little */
    fathom_kv kv;           /* AUTO: bf16 */
    uint32_t n_thread;      /* CPU workers; 0: all processors */
    const int *devices;     /* GPUs by index, one for each rank that runs here */
    uint32_t n_device;      /* 0: rank i has GPU i */
    uint32_t max_model_len; /* prompt and output, tokens; 0: the checkpoint's */
    bool fit_model_len;     /* with max_model_len 0: fewer, where the cache has no room for the
                           checkpoint's */
    uint32_t max_num_batched_tokens; /* tokens of a step; 0: 2048 */
    uint32_t max_num_seqs;           /* requests that run at once; 0: 64, on a GPU
                                        256 where there is room */
    uint32_t max_queued;             /* requests that wait; 0: 1024 */
    uint64_t max_queued_tokens;      /* prompt tokens that wait to be computed; 0: no limit */
    uint32_t slo_ttft_ms;            /* promised to the first token; 0: nothing is */
    uint32_t slo_tpot_ms;            /* promised from token to token; 0: nothing is */
    bool priorities;                 /* requests may have one; else they run as they come */
    uint64_t kv_cache_bytes;   /* taken as given; 0: what memory_utilization leaves, on a CPU no
                                        more than max_num_seqs requests of max_model_len */
    uint64_t kv_cache_tokens;  /* the same said in tokens, of whole pages of 64; 0: not given */
    double memory_utilization; /* share of free memory for weights and cache; 0: 0.9 */
    int32_t n_vocab_used;      /* ids from here on are never sampled; 0: all rows */
    uint64_t seed;             /* of requests without their own; 0: from the system */
    uint32_t n_draft;          /* tokens that the MTP layer guesses ahead, 0 .. FATHOM_DRAFT_MAX;
                             outputs are the same bits with any number */
    bool no_prefix_cache;      /* compute every prompt, also what is in the cache */
    /* Pages that leave the cache are kept, for requests that begin the same (docs/tiers.md). */
    uint64_t offload_ram_bytes;      /* host memory for them; 0: none, with a directory a little */
    const char *offload_dir;         /* NULL: none; this engine's alone while it is open */
    uint64_t offload_dir_bytes;      /* that they may take there; needed with offload_dir */
    const fathom_transfer *transfer; /* NULL: no pages of or for other servers. Memory for them is
                                        offload_ram_bytes; 0: two requests of max_model_len */
    const fathom_kv_events *kv_events; /* NULL: nobody is told what the cache holds */
    bool dummy;                        /* weights are made up from the shapes of config.json */
    const char *config_overrides; /* an object of JSON: values in place of those of config.json;
                                        NULL: none. Borrowed until fathom_open returns */
    bool quantize_fp8; /* BF16, F16 and F32 linear weights become FP8 blocks while loading */
    /* What the checkpoint's method must be, by vLLM's name ("awq", "gptq_marlin"); NULL: whatever
     * the files say. Borrowed until fathom_open returns. */
    const char *quantization;
    const fathom_hosts *hosts; /* NULL: this one alone. The caller's while the engine is open */
    uint32_t world;            /* ranks that share every layer; 0: 1 */
    uint32_t pipeline;         /* stages of `world` ranks that share the list of layers; 0: 1 */
    uint32_t data_parallel;    /* groups of `world` ranks that each have requests of their own, with
                                  max_num_seqs, max_num_batched_tokens and a cache for each; 0: 1.
                                  More need */
    bool expert_parallel;      /* each expert whole on one of all ranks */
    int32_t share_prompts;     /* tokens that a prompt has for each group, from which on all groups
                                  compute it together; 0: 256; negative: none is shared */
    fathom_layout layout;      /* instead of these three */
    uint32_t layout_ranks;     /* over so many; 0: GPUs, as there are or devices names them */
    fathom_load load;          /* what AUTO chooses by; n_request also makes max_num_seqs */
    bool rank_slice; /* for measurements: rank `rank` of `world` by itself, without collectives */
    uint32_t rank;
    bool no_async; /* a GPU idles while the next step is planned; else the host plans it ahead */
    /* steps that a GPU replays as a whole instead of taking kernel by kernel */
    bool enforce_eager;          /* none */
    const uint32_t *graph_sizes; /* tokens of a step, any order; steps in between are padded */
    uint32_t n_graph_size;       /* 0: a list up to the largest decode step */
    uint32_t n_graph_warm_up;    /* runs before each is recorded; 0: 1 */
    /* called by fathom_open on its own thread as weights get their place; NULL: nobody asks */
    void (*on_load)(void *arg, uint64_t done_bytes, uint64_t total_bytes);
    void *on_load_arg;
} fathom_options;

#endif
