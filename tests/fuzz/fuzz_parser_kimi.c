/* fuzz_parser_kimi.c - any bytes as an answer with this markup; support/chat_fuzz.h says what holds
 */
#include "support/chat_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    chat_fuzz_answer(CHAT_ENCODING_KIMI_K2, data, size);
    return 0;
}
