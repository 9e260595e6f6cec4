/* buffer.cu - the activations that cross the seam, and their reading and writing as f32 */
#include <string.h>

#include "backend/cuda/common.cuh"
#include "backend/cuda/launch.cuh"

extern "C" {
#include "backend/buffer_shape.h"
#include "base/mem.h"
}

static fathom_err part(struct cuda_backend *c, size_t n, size_t size, void **out, fathom_diag *d)
{
    ASSERT(n > 0);
    return c->base.ops->alloc(&c->base, n * size, "activations", out, d);
}

/* What a buffer consists of: values as f32 on the float path, as the next products take them on the
 * fast one (struct buffer). */
static fathom_err make_parts(struct cuda_backend *c, struct buffer *buf, fathom_diag *d)
{
    const struct backend_config *g = &c->c;
    const struct buffer_shape s = buffer_shape_of(g, buf->kind);
    const size_t n_row = s.n_row, n = n_row * s.main_width;
    const size_t n_index = n_row * (g->index_n_head ? g->index_n_head : 1);
    switch (buf->kind) {
    case BUFFER_RESIDUAL:
    case BUFFER_DELTA:
    case BUFFER_LOGITS: return part(c, n, 4, (void **)&buf->f, d);
    case BUFFER_NORMED:
        TRY(part(c, n, 4, (void **)&buf->f, d));
        if (!c->fast) return FATHOM_OK;
        TRY(part(c, n, 2, (void **)&buf->h, d));
        TRY(part(c, n, 1, (void **)&buf->q, d));
        return part(c, n / FP8_GROUP, 4, (void **)&buf->scale, d);
    case BUFFER_QUERY:
        TRY(part(c, n_index, 4, (void **)&buf->index_weight, d));
        if (!c->fast) {
            TRY(part(c, n_index * KV_INDEX_DIM, 4, (void **)&buf->index_f, d));
            return part(c, n, 4, (void **)&buf->f, d);
        }
        TRY(part(c, n_index * KV_INDEX_DIM, 1, (void **)&buf->q, d));
        return part(c, n, 2, (void **)&buf->h, d);
    case BUFFER_SELECT:
        TRY(part(c, g->index_topk ? n - n_row : 1, 4, (void **)&buf->i, d));
        return part(c, n_row, 4, (void **)&buf->n, d); /* the first value of a row */
    case BUFFER_LATENT:
        if (c->fast) return part(c, n, 2, (void **)&buf->h, d);
        return part(c, n, 4, (void **)&buf->f, d);
    case BUFFER_ROUTE:
        TRY(part(c, n + 1, 4, (void **)&buf->i, d));
        return part(c, n + 1, 4, (void **)&buf->w, d);
    }
    return FATHOM_EINVAL;
}

fathom_err cuda_buffer_create(struct backend *b, enum buffer_kind kind, struct buffer **out,
                              fathom_diag *d)
{
    struct buffer *buf = (struct buffer *)mem_calloc(1, sizeof *buf);
    *out = NULL;
    if (!buf) FAIL(d, FATHOM_ENOMEM, "no memory for a buffer");
    buf->kind = kind;
    fathom_err err = make_parts(cuda_of(b), buf, d);
    if (err) {
        cuda_buffer_destroy(b, buf);
        return err;
    }
    *out = buf;
    return FATHOM_OK;
}

/* What operators have made beside a buffer is no longer of what it holds. */
static void forget(struct cuda_backend *c, const struct buffer *buf)
{
    if (c->map.route == buf) c->map.route = NULL;
    if (c->codes_of == buf) c->codes_of = NULL;
    if (c->units.z == buf) c->units.z = NULL;
    if (c->normed.of == buf) c->normed.of = NULL;
}

void cuda_buffer_destroy(struct backend *b, struct buffer *buf)
{
    if (!buf) return;
    void *parts[] = {buf->f, buf->h, buf->q, buf->scale, buf->index_f, buf->index_weight,
                     buf->i, buf->n, buf->w};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) b->ops->release(b, parts[i]);
    forget(cuda_of(b), buf);
    mem_free(buf);
}

static fathom_err fetch(struct cuda_backend *c, void *host, const void *device, size_t bytes)
{
    CU_TRY(c, gpu_memcpy(host, device, bytes, GPU_TO_HOST), "buffer_read");
    return FATHOM_OK;
}

/* Whether the buffer has these rows, in this width: the kind's own, or without the index query. */
static bool is_access(const struct cuda_backend *c, const struct buffer *buf, uint32_t row0,
                      uint32_t n_row, uint32_t width)
{
    const struct buffer_shape s = buffer_shape_of(&c->c, buf->kind);
    const bool inside = row0 <= s.n_row && n_row <= s.n_row - row0;
    return inside && (width == s.width || (buf->kind == BUFFER_QUERY && width == s.main_width));
}

static fathom_err read_pairs(struct cuda_backend *c, const struct buffer *buf, uint32_t row0,
                             uint32_t n_row, float *out)
{
    uint32_t k = buf->kind == BUFFER_SELECT ? c->c.index_topk : c->c.n_expert_used;
    size_t n = (size_t)n_row * k;
    int32_t *ids = (int32_t *)mem_alloc_array(n + n_row, 4);
    float *weights = (float *)mem_alloc_array(n + 1, 4);
    fathom_err err = ids && weights ? FATHOM_OK : FATHOM_ENOMEM;
    if (!err) err = fetch(c, ids, buf->i + (size_t)row0 * k, n * 4);
    if (!err && buf->kind == BUFFER_SELECT) err = fetch(c, ids + n, buf->n + row0, n_row * 4);
    if (!err && buf->kind == BUFFER_ROUTE)
        err = fetch(c, weights, buf->w + (size_t)row0 * k, n * 4);
    for (uint32_t r = 0; !err && r < n_row; r++) {
        float *row = out + (size_t)r * (buf->kind == BUFFER_SELECT ? 1 + k : 2 * k);
        if (buf->kind == BUFFER_SELECT) {
            int32_t count = ids[n + r];
            *row++ = (float)count;
            for (uint32_t j = 0; j < k; j++) {
                row[j] = (int32_t)j < count ? (float)ids[(size_t)r * k + j] : -1.0f;
            }
        } else {
            for (uint32_t j = 0; j < k; j++) {
                row[j] = (float)ids[(size_t)r * k + j];
                row[k + j] = weights[(size_t)r * k + j];
            }
        }
    }
    mem_free(ids);
    mem_free(weights);
    return err;
}

/* The index query after the attention's, or before it: one row at a time, in tests only. */
static fathom_err read_index_row(struct cuda_backend *c, const struct buffer *buf, uint32_t row,
                                 float *out)
{
    uint32_t n = c->c.index_n_head * KV_INDEX_DIM;
    if (buf->index_f) {
        TRY(fetch(c, out, buf->index_f + (size_t)row * n, (size_t)n * 4));
    } else {
        uint8_t *codes = (uint8_t *)mem_alloc(n);
        if (!codes) return FATHOM_ENOMEM;
        fathom_err err = fetch(c, codes, buf->q + (size_t)row * n, n);
        for (uint32_t i = 0; i < n; i++) out[i] = f32_from_e4m3(codes[i]);
        mem_free(codes);
        TRY(err);
    }
    return fetch(c, out + n, buf->index_weight + (size_t)row * c->c.index_n_head,
                 (size_t)c->c.index_n_head * 4);
}

static fathom_err write_index_row(struct cuda_backend *c, struct buffer *buf, uint32_t row,
                                  const float *in)
{
    uint32_t n = c->c.index_n_head * KV_INDEX_DIM;
    if (buf->index_f) {
        CU_TRY(c,
               gpu_memcpy_async(buf->index_f + (size_t)row * n, in, (size_t)n * 4, GPU_TO_DEVICE,
                                c->stream),
               "buffer_write");
    } else {
        uint8_t *codes = (uint8_t *)mem_alloc(n);
        if (!codes) return FATHOM_ENOMEM;
        for (uint32_t i = 0; i < n; i++) codes[i] = e4m3_from_f32(in[i]);
        fathom_err err = cuda_check(
            c, gpu_memcpy_async(buf->q + (size_t)row * n, codes, n, GPU_TO_DEVICE, c->stream),
            "copy", "buffer_write");
        if (!err) err = c->base.ops->sync(&c->base);
        mem_free(codes);
        TRY(err);
    }
    CU_TRY(c,
           gpu_memcpy_async(buf->index_weight + (size_t)row * c->c.index_n_head, in + n,
                            (size_t)c->c.index_n_head * 4, GPU_TO_DEVICE, c->stream),
           "buffer_write");
    return FATHOM_OK;
}

/* Whether a width means a QUERY row with its index query, which begins at *narrow. */
static bool with_index(const struct cuda_backend *c, const struct buffer *buf, uint32_t width,
                       uint32_t *narrow)
{
    *narrow = buffer_shape_of(&c->c, buf->kind).main_width;
    return buf->kind == BUFFER_QUERY && width > *narrow;
}

fathom_err cuda_buffer_read(struct backend *b, const struct buffer *buf, uint32_t row0,
                            uint32_t n_row, uint32_t width, float *out)
{
    struct cuda_backend *c = cuda_of(b);
    TRY(b->ops->sync(b));
    if (!is_access(c, buf, row0, n_row, width)) return FATHOM_EINVAL;
    if (buf->kind == BUFFER_SELECT || buf->kind == BUFFER_ROUTE) {
        return read_pairs(c, buf, row0, n_row, out);
    }
    uint32_t narrow;
    if (with_index(c, buf, width, &narrow)) {
        for (uint32_t r = 0; r < n_row; r++, out += width) {
            TRY(cuda_buffer_read(b, buf, row0 + r, 1, narrow, out));
            TRY(read_index_row(c, buf, row0 + r, out + narrow));
        }
        return FATHOM_OK;
    }
    size_t n = (size_t)n_row * width, at = (size_t)row0 * width;
    if (buf->f) return fetch(c, out, buf->f + at, n * 4);
    uint16_t *half = (uint16_t *)mem_alloc_array(n, 2);
    if (!half) return FATHOM_ENOMEM;
    fathom_err err = fetch(c, half, buf->h + at, n * 2);
    for (size_t i = 0; !err && i < n; i++) out[i] = f32_from_bf16(half[i]);
    mem_free(half);
    return err;
}

__global__ void narrow_kernel(bf16 *h, const float *f, size_t n)
{
    kernel_begin();
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < n) h[i] = float_to_bf16(f[i]);
}

static fathom_err write_main(struct cuda_backend *c, struct buffer *buf, size_t at, uint32_t n_row,
                             uint32_t width, const float *in)
{
    size_t n = (size_t)n_row * width;
    ASSERT(!buf->q || buf->kind != BUFFER_NORMED || at % FP8_GROUP == 0);
    float *f = buf->f ? buf->f + at : NULL, *temporary = NULL;
    if (!f) {
        CU_TRY(c, gpu_malloc((void **)&temporary, n * 4), "buffer_write");
        f = temporary;
    }
    fathom_err err = cuda_check(c, gpu_memcpy_async(f, in, n * 4, GPU_TO_DEVICE, c->stream), "copy",
                                "buffer_write");
    if (!err && buf->h) {
        err = cuda_launch(c, "buffer_write", narrow_kernel, dim3((unsigned)((n + 255) / 256)), 256,
                          0, buf->h + at, (const float *)f, n);
    }
    if (!err && buf->kind == BUFFER_NORMED && buf->q) {
        buf->codes = CODES_FP8;
        err = cuda_quantize(c, f, n_row, width, buf->q + at, buf->scale + at / FP8_GROUP,
                            "buffer_write");
    }
    if (!err) err = c->base.ops->sync(&c->base);
    if (temporary) (void)gpu_free(temporary);
    return err;
}

static fathom_err write_pairs(struct cuda_backend *c, struct buffer *buf, uint32_t row0,
                              uint32_t n_row, const float *in)
{
    uint32_t k = buf->kind == BUFFER_SELECT ? c->c.index_topk : c->c.n_expert_used;
    uint32_t stride = buf->kind == BUFFER_SELECT ? 1 + k : 2 * k;
    int32_t *ids = (int32_t *)mem_alloc_array(k, 4);
    if (!ids) return FATHOM_ENOMEM;
    fathom_err err = FATHOM_OK;
    for (uint32_t r = 0; !err && r < n_row; r++) {
        const float *row = in + (size_t)r * stride;
        int32_t count = (int32_t)row[0];
        const float *list = buf->kind == BUFFER_SELECT ? row + 1 : row;
        for (uint32_t j = 0; j < k; j++) ids[j] = (int32_t)list[j];
        size_t at = (size_t)(row0 + r) * k;
        err = cuda_check(
            c, gpu_memcpy_async(buf->i + at, ids, (size_t)k * 4, GPU_TO_DEVICE, c->stream), "copy",
            "buffer_write");
        if (!err && buf->kind == BUFFER_SELECT) {
            err = cuda_check(
                c, gpu_memcpy_async(buf->n + row0 + r, &count, 4, GPU_TO_DEVICE, c->stream), "copy",
                "buffer_write");
        } else if (!err) {
            err = cuda_check(
                c, gpu_memcpy_async(buf->w + at, row + k, (size_t)k * 4, GPU_TO_DEVICE, c->stream),
                "copy", "buffer_write");
        }
        if (!err) err = c->base.ops->sync(&c->base); /* ids and count are used again */
    }
    mem_free(ids);
    return err;
}

fathom_err cuda_buffer_write(struct backend *b, struct buffer *buf, uint32_t row0, uint32_t n_row,
                             uint32_t width, const float *in)
{
    struct cuda_backend *c = cuda_of(b);
    TRY(b->ops->sync(b));
    if (!is_access(c, buf, row0, n_row, width)) return FATHOM_EINVAL;
    forget(c, buf);
    if (buf->kind == BUFFER_SELECT || buf->kind == BUFFER_ROUTE) {
        TRY(write_pairs(c, buf, row0, n_row, in));
        return b->ops->sync(b);
    }
    uint32_t narrow;
    if (with_index(c, buf, width, &narrow)) {
        for (uint32_t r = 0; r < n_row; r++, in += width) {
            TRY(write_main(c, buf, (size_t)(row0 + r) * narrow, 1, narrow, in));
            TRY(write_index_row(c, buf, row0 + r, in + narrow));
        }
        return b->ops->sync(b);
    }
    return write_main(c, buf, (size_t)row0 * width, n_row, width, in);
}
