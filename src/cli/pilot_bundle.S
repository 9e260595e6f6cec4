/* pilot_bundle.S - models/pilot as the constant `pilot_bundle` (cli.h)
 *
 * The layouts of fathom_bundle_file {name, data, size} and fathom_bundle {name, files, n_file} are
 * written out here: three words each of an LP64 machine; model_source.c asserts them. The assembler
 * is given models/pilot as an include path.
 */
#define FILES(X)                                                                                   \
    X(1, "config.json")                                                                            \
    X(2, "generation_config.json")                                                                 \
    X(3, "tokenizer.json")                                                                         \
    X(4, "tokenizer_config.json")                                                                  \
    X(5, "model.safetensors.index.json")                                                           \
    X(6, "model-00001-of-000003.safetensors")                                                      \
    X(7, "model-00002-of-000003.safetensors")                                                      \
    X(8, "model-00003-of-000003.safetensors")
#define N_FILE 8

#define CONTENT(i, path)                                                                           \
    .balign 64;                                                                                    \
    data_##i: .incbin path;                                                                        \
    end_##i: .byte 0;                                                                              \
    name_##i: .asciz path;
#define ROW(i, path) .quad name_##i, data_##i, end_##i - data_##i;

        .section .rodata
FILES(CONTENT)
bundle_name:
        .asciz "pilot"

        .section .data.rel.ro, "aw"
        .balign 8
rows:
FILES(ROW)
        .globl pilot_bundle
        .type pilot_bundle, %object
        .size pilot_bundle, 24
pilot_bundle:
        .quad bundle_name, rows, N_FILE

        .section .note.GNU-stack, "", %progbits
