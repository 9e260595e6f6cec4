/* join.cu - ranks of one process become each other's peers: access, arenas, what a fault says */
#include <stdio.h>
#include <string.h>

#include "backend/cuda/join.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/peers.cuh"

enum { ARM_THREADS = 256 };

__global__ void arm_kernel(char *arena, uint64_t n_unit)
{
    const uint64_t i = (uint64_t)blockIdx.x * ARM_THREADS + threadIdx.x;
    kernel_begin();
    if (i < n_unit) peer_arm(arena + i * PEER_UNIT);
}

/* A warp of one thread that works. */
__global__ void tell_kernel(const GRID_CONSTANT struct peers p)
{
    kernel_begin();
    if (threadIdx.x == 0) peer_tell_waits(p);
}

static struct peers *group_of(struct cuda_backend *c, enum peer_group group)
{
    return group == PEERS_OF_LANE ? &c->peers : &c->ep;
}

static fathom_err check_device(const struct cuda_backend *from, const struct cuda_backend *to,
                               fathom_diag *d)
{
    if (from->device != to->device) return FATHOM_OK;
    FAIL(d, FATHOM_EDEVICE, "ranks %u and %u have one device, %d; each needs its own",
         parallel_rank(&from->c.parallel), parallel_rank(&to->c.parallel), from->device);
}

static fathom_err check_pair(const struct cuda_backend *from, const struct cuda_backend *to,
                             fathom_diag *d)
{
    int can = 0;
    TRY(check_device(from, to, d));
    if (gpu_can_access_peer(&can, from->device, to->device) != GPU_SUCCESS) can = 0;
    (void)gpu_last_error();
    if (!can) {
        FAIL(d, FATHOM_EDEVICE,
             "device %d of rank %u cannot reach the memory of device %d of rank %u; choose devices "
             "with peer access, see nvidia-smi topo -p2p w",
             from->device, parallel_rank(&from->c.parallel), to->device,
             parallel_rank(&to->c.parallel));
    }
    if (strcmp(from->properties.name, to->properties.name) != 0) {
        FAIL(d, FATHOM_EDEVICE,
             "device %d of rank %u is \"%s\", device %d of rank %u \"%s\": ranks need GPUs of one "
             "kind",
             from->device, parallel_rank(&from->c.parallel), from->properties.name, to->device,
             parallel_rank(&to->c.parallel), to->properties.name);
    }
    return FATHOM_OK;
}

static fathom_err enable_peers(struct cuda_backend *const *c, uint32_t n, uint32_t rank,
                               fathom_diag *d)
{
    CU_TRY(c[rank], gpu_set_device(c[rank]->device), "join");
    for (uint32_t r = 0; r < n; r++) {
        if (r == rank) continue;
        TRY(check_pair(c[rank], c[r], d));
        const gpu_error e = gpu_enable_peer_access(c[r]->device, 0);
        (void)gpu_last_error();
        if (e != GPU_SUCCESS && e != GPU_PEER_ALREADY) {
            FAIL(d, FATHOM_EDEVICE, "device %d cannot be given the memory of device %d: %s",
                 c[rank]->device, c[r]->device, gpu_error_string(e));
        }
    }
    return FATHOM_OK;
}

/* Of this rank; base[rank] is it from then on. */
static fathom_err make_arena(struct cuda_backend *c, enum peer_group group, fathom_diag *d)
{
    struct peers *p = group_of(c, group);
    void *arena = NULL;
    peer_layout_make(&p->at, &c->c, group);
    CU_TRY(c, gpu_set_device(c->device), "join");
    TRY(c->base.ops->alloc(&c->base, p->at.n_bytes, "what peers send", &arena, d));
    char *const base = (char *)arena;
    p->base[p->rank] = base;
    p->epochs = (uint32_t *)(base + p->at.epochs);
    const bool is_second = group == PEERS_OF_EXPERTS && c->peers.lost;
    p->waits = is_second ? c->peers.waits : (struct rank_waits *)(base + p->at.waits);
    p->lost = is_second ? c->peers.lost : (uint32_t *)(base + p->at.lost);
    p->bound_ns = cuda_peer_bound_ns(c);
    p->n_one_shot = p->at.one_shot_rows;
    p->report = c->report;
    const uint64_t n_unit = p->at.armed_end / PEER_UNIT;
    TRY(cuda_launch(c, "join", arm_kernel,
                    dim3((uint32_t)((n_unit + ARM_THREADS - 1) / ARM_THREADS)), ARM_THREADS, 0,
                    base, n_unit));
    return c->base.ops->sync(&c->base);
}

/* Of ranks on several hosts: who is in a group with this one. */
static void name_group(struct cuda_backend *c, enum peer_group group)
{
    struct peers *p = group_of(c, group);
    const uint32_t n = peer_group_size(&c->c, group), peer = parallel_peer(&c->c.parallel);
    if (n < 2) return;
    p->world = n;
    p->rank = peer % n;
    p->peer0 = peer - p->rank;
    peer_layout_make(&p->at, &c->c, group);
}

/* Ranks of several hosts have NCCL between them, those of one host too: kernels reach no peer. */
static fathom_err join_hosts(struct backend *const *b, uint32_t n, fathom_diag *d)
{
    const struct backend_config *configs[PARALLEL_RANKS_MAX] = {};
    struct cuda_net *nets[PARALLEL_RANKS_MAX];
    for (uint32_t r = 0; r < n; r++) {
        struct cuda_backend *c = cuda_of(b[r]);
        for (uint32_t k = 0; k < r; k++) TRY(check_device(c, cuda_of(b[k]), d));
        configs[r] = &c->c;
    }
    TRY(net_join(nets, configs, n, d));
    for (uint32_t r = 0; r < n; r++) {
        struct cuda_backend *c = cuda_of(b[r]);
        c->net = nets[r];
        name_group(c, PEERS_OF_LANE);
        name_group(c, PEERS_OF_EXPERTS);
        c->first = cuda_of(b[0]);
    }
    return FATHOM_OK;
}

/* Ranks c[0] .. c[n - 1], of which the first is peer number peer0 of all. */
static fathom_err join_group(struct cuda_backend *const *c, uint32_t n, uint32_t peer0,
                             enum peer_group group, fathom_diag *d)
{
    for (uint32_t r = 0; r < n; r++) {
        struct peers *p = group_of(c[r], group);
        p->rank = r;
        p->peer0 = peer0;
        TRY(make_arena(c[r], group, d));
    }
    for (uint32_t r = 0; r < n; r++) {
        struct peers *p = group_of(c[r], group);
        for (uint32_t k = 0; k < n; k++) p->base[k] = group_of(c[k], group)->base[k];
        p->world = n;
    }
    return FATHOM_OK;
}

static fathom_err make_report(struct cuda_backend *c, fathom_diag *d)
{
    void *report = NULL;
    TRY(c->base.ops->alloc_host(&c->base, sizeof *c->report, &report, d));
    c->report = (struct peer_report *)report;
    return FATHOM_OK;
}

fathom_err cuda_join(struct backend *const *b, uint32_t n, fathom_diag *d)
{
    struct cuda_backend *c[PEERS_MAX] = {};
    if (n > PEERS_MAX) FAIL(d, FATHOM_EUNSUPPORTED, "%u ranks; the cuda backend joins 8", n);
    if (cuda_of(b[0])->c.n_host > 1) return join_hosts(b, n, d);
    for (uint32_t r = 0; r < n; r++) {
        c[r] = cuda_of(b[r]);
        ASSERT(parallel_n_peer(&c[r]->c.parallel) == n && parallel_peer(&c[r]->c.parallel) == r);
    }
    if (n == 1) return FATHOM_OK;
    const uint32_t n_lane = peer_group_size(&c[0]->c, PEERS_OF_LANE);
    if (n_lane > 1 && c[0]->c.n_vocab % (4 * n_lane)) {
        FAIL(d, FATHOM_EUNSUPPORTED, "a vocabulary of %u over %u ranks; a multiple of %u is needed",
             c[0]->c.n_vocab, n_lane, 4 * n_lane);
    }
    for (uint32_t r = 0; r < n; r++) {
        TRY(enable_peers(c, n, r, d));
        TRY(make_report(c[r], d));
        c[r]->first = c[0];
    }
    for (uint32_t r = 0; r < n && n_lane > 1; r += n_lane)
        TRY(join_group(c + r, n_lane, r, PEERS_OF_LANE, d));
    return peer_group_size(&c[0]->c, PEERS_OF_EXPERTS) > 1
               ? join_group(c, n, 0, PEERS_OF_EXPERTS, d)
               : FATHOM_OK;
}

void cuda_get_waits(const struct backend *b, struct rank_waits *out)
{
    const struct peer_report *r = ((const struct cuda_backend *)b)->report;
    *out = {};
    if (!r) return;
    out->n = r->n;
    out->ns = r->ns;
}

fathom_err cuda_tell_waits(struct cuda_backend *c)
{
    ASSERT(c->ep.world > 1);
    return cuda_launch(c, "waits", tell_kernel, dim3(1), WARP, 0, c->ep);
}

uint64_t cuda_progress(const struct backend *b)
{
    const struct peer_report *r = ((const struct cuda_backend *)b)->report;
    return r ? r->n_told : 0;
}

static void leave_group(struct peers *p)
{
    if (p->base[p->rank]) (void)gpu_free(p->base[p->rank]);
}

void cuda_peers_leave(struct cuda_backend *c)
{
    if (!c->net) {
        leave_group(&c->peers);
        leave_group(&c->ep);
    }
    net_leave(c->net);
    c->net = NULL;
    c->peers = {};
    c->ep = {};
    if (c->report) c->base.ops->release_host(&c->base, c->report);
    c->report = NULL;
    c->first = NULL;
}
