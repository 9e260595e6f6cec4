/* recorder.c - a backend that records calls and replays them */
#include "support/recorder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/mem.h"

enum op {
    EMBED,
    REDUCE_NORM,
    MLA_FRONT,
    INDEX_TOPK,
    MLA_ATTEND,
    MLA_OUT,
    FFN,
    ROUTER,
    MOE,
    HEAD,
    MTP
};

struct entry {
    enum op op;
    struct batch batch; /* of operators that point at one */
    union {
        struct embed_args embed;
        struct reduce_norm_args reduce_norm;
        struct mla_front_args mla_front;
        struct index_topk_args index_topk;
        struct mla_attend_args mla_attend;
        struct mla_out_args mla_out;
        struct ffn_args ffn;
        struct router_args router;
        struct moe_args moe;
        struct head_args head;
        struct mtp_front_args mtp_front;
    } args;
};

enum { ENTRIES_MAX = 256 };

struct graph {
    uint32_t n;
    struct entry entries[ENTRIES_MAX];
};

static struct recorder *recorder_of(struct backend *b)
{
    return (struct recorder *)(uintptr_t)b->ops;
}

static struct entry *note(struct recorder *r, enum op op)
{
    struct graph *g = r->recording;
    assert_true(g->n < ENTRIES_MAX);
    g->entries[g->n].op = op;
    return &g->entries[g->n++];
}

#define NOTE(name, op)                                                                             \
    static fathom_err note_##name(struct backend *b, const struct name##_args *a)                  \
    {                                                                                              \
        struct recorder *r = recorder_of(b);                                                       \
        if (!r->recording) return r->real->name(b, a);                                             \
        note(r, op)->args.name = *a;                                                               \
        return FATHOM_OK;                                                                          \
    }
#define NOTE_BATCH(name, op)                                                                       \
    static fathom_err note_##name(struct backend *b, const struct name##_args *a)                  \
    {                                                                                              \
        struct recorder *r = recorder_of(b);                                                       \
        if (!r->recording) return r->real->name(b, a);                                             \
        struct entry *e = note(r, op);                                                             \
        e->args.name = *a;                                                                         \
        e->batch = *a->batch;                                                                      \
        e->args.name.batch = &e->batch;                                                            \
        return FATHOM_OK;                                                                          \
    }

NOTE(reduce_norm, REDUCE_NORM)
NOTE_BATCH(mla_front, MLA_FRONT)
NOTE_BATCH(index_topk, INDEX_TOPK)
NOTE_BATCH(mla_attend, MLA_ATTEND)
NOTE_BATCH(mla_out, MLA_OUT)
NOTE(ffn, FFN)
NOTE(router, ROUTER)
NOTE(moe, MOE)
NOTE(head, HEAD)
NOTE(mtp_front, MTP)

static fathom_err note_embed(struct backend *b, const struct embed_args *a)
{
    struct recorder *r = recorder_of(b);
    if (!r->recording) {
        r->n_eager++;
        return r->real->embed(b, a);
    }
    note(r, EMBED)->args.embed = *a;
    return FATHOM_OK;
}

static fathom_err replay(struct backend *b, const struct backend_ops *ops, const struct entry *e)
{
    switch (e->op) {
    case EMBED: return ops->embed(b, &e->args.embed);
    case REDUCE_NORM: return ops->reduce_norm(b, &e->args.reduce_norm);
    case MLA_FRONT: return ops->mla_front(b, &e->args.mla_front);
    case INDEX_TOPK: return ops->index_topk(b, &e->args.index_topk);
    case MLA_ATTEND: return ops->mla_attend(b, &e->args.mla_attend);
    case MLA_OUT: return ops->mla_out(b, &e->args.mla_out);
    case FFN: return ops->ffn(b, &e->args.ffn);
    case ROUTER: return ops->router(b, &e->args.router);
    case MOE: return ops->moe(b, &e->args.moe);
    case HEAD: return ops->head(b, &e->args.head);
    case MTP: return ops->mtp_front(b, &e->args.mtp_front);
    }
    return FATHOM_EINVAL;
}

static fathom_err graph_begin(struct backend *b)
{
    struct recorder *r = recorder_of(b);
    assert_null(r->recording);
    r->recording = mem_calloc(1, sizeof *r->recording);
    return r->recording ? FATHOM_OK : FATHOM_ENOMEM;
}

static fathom_err graph_end(struct backend *b, struct graph **out)
{
    struct recorder *r = recorder_of(b);
    assert_non_null(r->recording);
    *out = r->recording;
    r->recording = NULL;
    r->n_recorded++;
    if (r->fail_after == 0 || r->n_recorded <= r->fail_after) return FATHOM_OK;
    mem_free(*out);
    *out = NULL;
    r->n_recorded--;
    return FATHOM_EDEVICE;
}

static fathom_err graph_launch(struct backend *b, struct graph *g)
{
    struct recorder *r = recorder_of(b);
    fathom_err err = FATHOM_OK;
    r->n_launch++;
    for (uint32_t i = 0; !err && i < g->n; i++) err = replay(b, r->real, &g->entries[i]);
    return err;
}

static void graph_destroy(struct backend *b, struct graph *g)
{
    recorder_of(b)->n_destroyed++;
    mem_free(g);
}

static void get_caps(struct backend *b, struct backend_caps *out)
{
    recorder_of(b)->real->get_caps(b, out);
    out->graphs = true;
}

void recorder_install(struct recorder *r, struct backend *b)
{
    *r = (struct recorder){.ops = *b->ops, .real = b->ops};
    r->ops.get_caps = get_caps;
    r->ops.graph_begin = graph_begin;
    r->ops.graph_end = graph_end;
    r->ops.graph_launch = graph_launch;
    r->ops.graph_destroy = graph_destroy;
    r->ops.embed = note_embed;
    r->ops.reduce_norm = note_reduce_norm;
    r->ops.mla_front = note_mla_front;
    r->ops.index_topk = note_index_topk;
    r->ops.mla_attend = note_mla_attend;
    r->ops.mla_out = note_mla_out;
    r->ops.ffn = note_ffn;
    r->ops.router = note_router;
    r->ops.moe = note_moe;
    r->ops.head = note_head;
    r->ops.mtp_front = note_mtp_front;
    b->ops = &r->ops;
}
