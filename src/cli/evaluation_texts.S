/* evaluation_texts.S - models/texts.jsonl between evaluation_texts_begin and evaluation_texts_end
 *
 * The assembler is given models/pilot as an include path. */
        .section .rodata
        .globl evaluation_texts_begin
        .globl evaluation_texts_end
evaluation_texts_begin:
        .incbin "../texts.jsonl"
evaluation_texts_end:
        .byte 0

        .section .note.GNU-stack, "", %progbits
