/* web_files.S - the files of src/server/web as the table `web_files` (web.h)
 *
 * A row is {path, data, size}: three words of an LP64 machine, which web.c asserts. The assembler
 * is given src/server/web as an include path.
 */
#define FILES(X)                                                                                   \
    X(1, "index.html")                                                                             \
    X(2, "web.css")                                                                               \
    X(3, "icon.svg")                                                                               \
    X(4, "web.js")                                                                                \
    X(5, "chat.js")                                                                                \
    X(6, "load.js")                                                                                \
    X(7, "api.js")                                                                                 \
    X(8, "markdown.js")                                                                            \
    X(9, "metrics.js")                                                                             \
    X(10, "temml.min.js")                                                                          \
    X(11, "docs.html")                                                                             \
    X(12, "docs.js")                                                                               \
    X(13, "docs.css")

#define CONTENT(i, path)                                                                           \
    data_##i: .incbin path;                                                                        \
    end_##i: .byte 0;                                                                              \
    name_##i: .asciz path;
#define ROW(i, path) .quad name_##i, data_##i, end_##i - data_##i;

        .section .rodata
FILES(CONTENT)

        .section .data.rel.ro, "aw"
        .balign 8
        .globl web_files
        .type web_files, %object
web_files:
FILES(ROW)
        .quad 0, 0, 0
        .size web_files, . - web_files

        .section .note.GNU-stack, "", %progbits
