/* host_share.h - share_rows (op_attn.h) over ranks that meet
 *
 * Ranks of one process copy from each other's caches. Those of several pack rows, in rounds
 * (share_round.h) of as many of each rank as net->pack_bytes hold. A lane's rows are alike on its
 * ranks: each packs some of them, and all others take all. */
#ifndef FATHOM_BACKEND_HOST_SHARE_H
#define FATHOM_BACKEND_HOST_SHARE_H

#include "backend/host_group.h"

/* host_share_rows - from the lanes that have them to the caches of all others
 *
 *   n_share  ranks of a lane
 * Needs   a group of all ranks, or none. Errors: EPEER. */
fathom_err host_share_rows(struct host_rank *r, uint32_t n_share, const struct share_rows_args *a);

#endif
