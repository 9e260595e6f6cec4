/* limits.h - every named limit, each with the answer given when it is hit */
#ifndef FATHOM_BASE_LIMITS_H
#define FATHOM_BASE_LIMITS_H

enum {
    LIMIT_JSON_DEPTH = 512,                     /* nesting of a JSON body: 400 / EFORMAT */
    LIMIT_JSON_FACTOR = 8,                      /* memory for each byte of a body: 400 */
    LIMIT_JSON_LEAST_BYTES = 4 << 20,           /* and so much for any: 400 */
    LIMIT_JSON_TREE_BYTES = 516 << 20,          /* for the largest body: 400 */
    LIMIT_JSON_TREES_BYTES = 1040 << 20,        /* for all bodies together: 429 */
    LIMIT_JSON_VALUES = 2 << 20,                /* values of a body, without token ids: 400 */
    LIMIT_JSON_MEMBERS = 1 << 16,               /* members of an object of a body: 400 */
    LIMIT_PATH_BYTES = 4096,                    /* a path: EINVAL */
    LIMIT_TENSOR_DIMS = 8,                      /* dimensions of a tensor: EFORMAT */
    LIMIT_SAFETENSORS_HEADER_BYTES = 100 << 20, /* header of one shard: EFORMAT */
    LIMIT_HTTP_HEAD_BYTES = 64 << 10,           /* request line and headers: 431, closed */
    LIMIT_HTTP_HEAD_MS = 30000,                 /* for them to come: closed */
    LIMIT_HTTP_IDLE_MS = 75000,                 /* the same after an answer: closed */
    LIMIT_HTTP_CHUNK_EXTRA_BYTES = 4 << 10,     /* extensions and trailers of a body: 400, closed */
    LIMIT_HTTP_BODY_BYTES = 64 << 20,           /* request body: 413 */
    LIMIT_GZIP_FACTOR = 64,                     /* text of a packed body for each byte: 413 */
    LIMIT_GZIP_LEAST_BYTES = 1 << 20,           /* and so much for any: 413 */
    LIMIT_HTTP_BODY_MS = 120000,                /* for it to come: closed */
    LIMIT_HTTP_HELD_BYTES = 1 << 30,            /* bodies of all requests, not yet parsed: 429 */
    LIMIT_HTTP_ANSWER_BYTES = 128 << 20,        /* an answer that is no stream: 413 */
    LIMIT_HTTP_UNREAD_BYTES = 256 << 20,        /* answers that clients do not read: some are cut */
    LIMIT_HTTP_UNREAD_MS = 75000,               /* for a client to read anything of one: cut */
    LIMIT_STORED_RESPONSES = 4096,              /* kept for /v1/responses: the oldest leave */
    LIMIT_STORED_BYTES = 256 << 20,             /* of them together: likewise */
    LIMIT_STORED_S = 86400,                     /* how long one is kept: likewise */
    LIMIT_TOP_LOGPROBS = 20,                    /* top_logprobs: 400 */
    LIMIT_PROMPT_LOGPROBS = 1 << 20,            /* entries for prompt tokens: 400 */
    LIMIT_REQUEST_ID_BYTES = 64,                /* request_id, X-Request-Id: 400, ignored */
    LIMIT_STOP_STRINGS = 64,                    /* stop strings of a request: 400 */
    LIMIT_STOP_BYTES = 4096,                    /* of one of them: 400 */
    LIMIT_STOP_TOKENS = 64,                     /* stop_token_ids of a request: 400 */
    LIMIT_LOGIT_BIAS = 1024,                    /* entries of logit_bias: 400 */
    LIMIT_BAD_WORDS = 64,                       /* bad_words of a request: 400 */
    LIMIT_BAD_WORD_TOKENS = 16,                 /* of one of them: 400 */
    LIMIT_THINKING_CLOSING = 256,               /* tokens before a forced </think>: no start */
    LIMIT_CHOICES = 1024,                       /* n, or prompts of a completion, times n: 400 */
    LIMIT_CHOICE_TOKENS = 16 << 20,             /* their prompt tokens together: 400 */
    LIMIT_MESSAGES = 1 << 16,                   /* messages, or items, of a request: 400 */
    LIMIT_TOOLS = 512,                          /* tools of a request: 400 */
    LIMIT_TOOLS_BYTES = 16 << 20,               /* memory for them until the end: 400 */
    LIMIT_STREAM_BACKLOG_BYTES = 4 << 20,       /* unread stream of one client: it is cut */
    LIMIT_ANSWERS_BYTES = 1 << 30,              /* memory of all answers: 429; of one a quarter */
    LIMIT_TOKEN_ANSWER_BYTES = 128 << 20,       /* of /tokenize and /detokenize: 400 */
    LIMIT_GRAMMAR_TEXT_BYTES = 1 << 20,         /* schema, or tools, of a request: 400 */
    LIMIT_GRAMMAR_COMPILE_MS = 20000,           /* a compilation, all in all: 503 */
    LIMIT_GRAMMAR_CACHE_BYTES = 256 << 20,      /* compiled grammars: the oldest go */
    LIMIT_THREADS = 256,                        /* worker threads of a backend: EINVAL */
    LIMIT_NUM_SEQS = 4096,                      /* requests that run at once: EINVAL */
    LIMIT_BATCHED_TOKENS = 1 << 20,             /* tokens of a step: EINVAL */
    LIMIT_QUEUED = 1 << 20,                     /* requests that wait: EINVAL */
    LIMIT_PIECE_BYTES = 1 << 20,                /* text of a prompt between two splits: 400 */
    LIMIT_TOKEN_IDS = (1 << 22) - 1,            /* ids of a tokenizer: ELIMIT */
    LIMIT_TOKEN_BYTES = 65535,                  /* one token's text: ELIMIT */
    LIMIT_MERGES = (1 << 20) - 1,               /* merges of a tokenizer: ELIMIT */
    LIMIT_SPLITS = 16,                          /* pre-tokenizer patterns: ELIMIT */
};

#endif
