/* scene.h - one request and its answer, without a server: what the model says goes in, bytes come
 * out
 *
 * Every function but scene_try and scene_say fails the running test when something goes wrong.
 */
#ifndef FATHOM_TESTS_SCENE_H
#define FATHOM_TESTS_SCENE_H

#include "server/api/answer.h"

struct scene {
    struct api_request request;
    struct token_list prompts[4]; /* each of six tokens */
    struct answer answer;
};

/* scene_setup, scene_teardown - the tokenizer of all scenes; for cmocka_run_group_tests */
int scene_setup(void **state);
int scene_teardown(void **state);

/* scene_open - a request to the model "m" (V3.2), made at second 5
 *
 *   thinking  the prompt ends inside reasoning */
struct scene *scene_open(enum api_kind api, const char *body, bool thinking);
void scene_close(struct scene *s);

/* scene_try - the same in memory of the caller; ENOMEM is returned. scene_free - whatever it
 * returned */
fathom_err scene_try(struct scene *s, enum api_kind api, const char *body, bool thinking);
void scene_free(struct scene *s);

/* scene_score - tell choice i of its prompt's tokens from the second on: the k-th has
 * log-probability -k / 8 and place 2, behind the byte C3 */
fathom_err scene_score(struct answer *a, size_t i);

/* scene_say - give the tokens of text to choice i, then EOS and FINISH unless a stop string came
 * first; 4 prompt tokens count as cached. EOS has log-probability -0.75, behind "c" */
fathom_err scene_say(struct answer *a, size_t i, const char *text, fathom_finish why);

/* scene_play - scene_open, thinking, scene_say to choice 0, answer_close */
struct scene *scene_play(enum api_kind api, const char *body, const char *said, fathom_finish why);

/* scene_fail_each - open, say and close with each allocation failing in turn */
void scene_fail_each(enum api_kind api, const char *body, const char *said);

/* scene_out - what the answer has written */
const char *scene_out(const struct scene *s);

/* scene_next_event - the data of the event at *at, which goes on behind it; the event's name must
 * be the type in its data */
json_t *scene_next_event(const char **at);

#endif
