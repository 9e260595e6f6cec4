/* calibration.c - rows that calibration texts gave */
#include "quantize/calibration.h"

#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/dtype.h"
#include "base/fail.h"
#include "base/mem.h"

fathom_err calibration_path(char out[LIMIT_PATH_BYTES], const char *dir, uint32_t layer)
{
    char name[64];
    (void)snprintf(name, sizeof name, "quantize_rows_%u", layer);
    return path_join(out, LIMIT_PATH_BYTES, dir, name);
}

static uint64_t rows_bytes(const struct calibration_shape *s)
{
    return s->n_row * s->hidden * sizeof(uint16_t);
}

uint64_t calibration_bytes(const struct calibration_shape *s)
{
    return rows_bytes(s) + s->n_row * s->n_used * sizeof(uint16_t);
}

fathom_err calibration_write(struct new_file *f, const struct calibration_shape *s, uint64_t row0,
                             uint64_t n_row, const float *rows, const uint16_t *experts,
                             fathom_diag *d)
{
    const size_t n = (size_t)n_row * s->hidden;
    ASSERT(row0 + n_row <= s->n_row);
    uint16_t *narrow = mem_alloc_array(n, sizeof *narrow);
    if (!narrow) FAIL(d, FATHOM_ENOMEM, "no memory for %zu calibration values", n);
    for (size_t i = 0; i < n; i++) narrow[i] = bf16_from_f32(rows[i]);
    fathom_err err =
        new_file_write(f, narrow, n * sizeof *narrow, row0 * s->hidden * sizeof *narrow, d);
    mem_free(narrow);
    if (err || s->n_used == 0) return err;
    return new_file_write(f, experts, (size_t)n_row * s->n_used * sizeof *experts,
                          rows_bytes(s) + row0 * s->n_used * sizeof *experts, d);
}

fathom_err calibration_open(struct calibration_layer *l, const char *dir, uint32_t layer,
                            const struct calibration_shape *s, fathom_diag *d)
{
    char path[LIMIT_PATH_BYTES];
    memset(l, 0, sizeof *l);
    TRY(calibration_path(path, dir, layer));
    TRY(file_map_open(&l->map, path, d));
    if (l->map.size != calibration_bytes(s)) {
        const unsigned long long size = l->map.size;
        calibration_close(l);
        FAIL(d, FATHOM_EFORMAT, "%s has %llu bytes, needed are %llu: remove it and --resume", path,
             size, (unsigned long long)calibration_bytes(s));
    }
    l->shape = *s;
    l->rows = l->map.data;
    l->experts = l->rows + s->n_row * s->hidden;
    return FATHOM_OK;
}

void calibration_close(struct calibration_layer *l)
{
    file_map_close(&l->map);
    memset(l, 0, sizeof *l);
}

fathom_err calibration_remove(const char *dir, uint32_t n_layer, fathom_diag *d)
{
    char path[LIMIT_PATH_BYTES];
    for (uint32_t i = 0; i < n_layer; i++) {
        TRY(calibration_path(path, dir, i));
        TRY(file_remove(path, d));
    }
    return FATHOM_OK;
}
