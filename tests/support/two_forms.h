/* two_forms.h - the cpu backend, with prompt rows of other bits than its answer rows
 *
 * A program that is linked with two_forms.c and -Wl,--wrap=backend_cpu_create gets such a backend
 * wherever it makes one: the attention output of prompt rows is larger by one part in 128, which
 * rounding to bf16 does not hide, and caps.prompt_form says so. So bits depend on which rows were
 * taken for which.
 */
#ifndef FATHOM_TESTS_SUPPORT_TWO_FORMS_H
#define FATHOM_TESTS_SUPPORT_TWO_FORMS_H

#include <stdint.h>

/* two_forms_n_prompt_row, two_forms_n_answer_row - rows of a layer attended to by all such backends
 * so far; read while none computes */
uint64_t two_forms_n_prompt_row(void);
uint64_t two_forms_n_answer_row(void);

#endif
