/* ray.h - what is typed to join hosts by Ray, answered with what joins them here
 *
 * Hosts need nothing between them: each starts the same command, with its number.
 */
#ifndef FATHOM_CLI_RAY_H
#define FATHOM_CLI_RAY_H

#include "base/buf.h"
#include "cli/command_line.h"
#include "fathom/err.h"

/* ray_write_serve - the lines that stand for --distributed-executor-backend ray beside these
 * settings
 *
 * A stage of --pipeline-parallel-size is a host, unless --nnodes says how many there are.
 * Edge  what was not given is a word in capitals: N hosts, HOST0, host 0's address. */
fathom_err ray_write_serve(struct buf *out, const struct settings *s);

/* ray_write_answer - the line that stands for `ray WORDS...`, of which ray is not one: `start
 * --head --port=6379` */
fathom_err ray_write_answer(struct buf *out, const char *const *words, size_t n);

#endif
