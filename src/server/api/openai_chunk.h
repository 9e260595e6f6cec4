/* openai_chunk.h - what the forms of /v1/chat/completions and /v1/completions share */
#ifndef FATHOM_SERVER_API_OPENAI_CHUNK_H
#define FATHOM_SERVER_API_OPENAI_CHUNK_H

#include "server/api/answer.h"

/* openai_chunk_open - write the beginning of every chunk of the answer; object is its "object" */
fathom_err openai_chunk_open(struct answer *a, const char *object);

/* openai_chunk_begin, openai_chunk_end - around one choice's object in a chunk. Errors stay in out.
 *
 *   tell_prompt  the prompt's ids are told, if the request wants them */
void openai_chunk_begin(struct answer *a);
void openai_chunk_end(struct answer *a, bool tell_prompt);

/* openai_write_flat - write a chunk whose choice has the same form as in a whole body, and clear
 * what it has told
 *
 *   write_choice, tell_prompt  as in openai_close and openai_chunk_end */
fathom_err openai_write_flat(struct choice *c, void (*write_choice)(struct buf *, struct choice *),
                             bool tell_prompt);

/* openai_write_ids - write ,"key":[ids]; ids may be any JSON values with commas between them */
void openai_write_ids(struct buf *b, const char *key, const struct buf *ids);

/* openai_write_scores - ,"prompt_logprobs":[null,..] of prompt i if the request wants them */
void openai_write_scores(struct buf *b, const struct answer *a, size_t i);

/* openai_write_finish - "finish_reason":..,"stop_reason":.. (null and absent while open) */
void openai_write_finish(struct buf *b, const struct choice *c);

/* openai_write_stop - the stop string or the id of the stop token that ended it; null: neither */
void openai_write_stop(struct buf *b, const struct choice *c);

/* openai_close - the whole body, or the usage asked for and the end of the stream
 *
 *   object        of the body
 *   write_choice  the choice's object in the body */
fathom_err openai_close(struct answer *a, const char *object,
                        void (*write_choice)(struct buf *b, struct choice *c));

/* openai_fail, openai_keep_alive - the form's functions of these names */
fathom_err openai_fail(struct answer *a, const struct api_error *e);
fathom_err openai_keep_alive(struct answer *a);

#endif
