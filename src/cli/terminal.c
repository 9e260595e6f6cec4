/* terminal.c - messages typed at a terminal, over libedit */
#include "cli/terminal.h"

#include <errno.h>
#include <histedit.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/fail.h"
#include "base/limits.h"
#include "base/mem.h"
#include "cli/dialog.h"

enum { HISTORY_LINES = 1000 };

struct terminal {
    EditLine *el;
    History *lines;
    bool going_on; /* the prompt is that of a further line */
    char path[LIMIT_PATH_BYTES];
};

static char *prompt_text(EditLine *el)
{
    static const char first[] = "> ", further[] = ". ";
    struct terminal *t = NULL;
    (void)el_get(el, EL_CLIENTDATA, &t);
    return (char *)(uintptr_t)(t && t->going_on ? further : first); /* the library only reads it */
}

/* Tab after the beginning of a command. */
static unsigned char complete(EditLine *el, int key)
{
    const LineInfo *line = el_line(el);
    size_t n = (size_t)(line->cursor - line->buffer);
    struct buf rest = {0};
    (void)key;
    if (n == 0 || line->buffer[0] != '/' || memchr(line->buffer, ' ', n)) return CC_ERROR;
    size_t n_found = dialog_command_complete(line->buffer, n, &rest);
    bool inserted = rest.len && el_insertstr(el, buf_str(&rest)) == 0;
    buf_free(&rest);
    if (inserted) return n_found == 1 ? CC_REFRESH : CC_REFRESH_BEEP;
    return CC_ERROR;
}

static unsigned char suspend(EditLine *el, int key)
{
    (void)el, (void)key;
    (void)raise(SIGTSTP); /* the library's handler gives the terminal back and takes it again */
    return CC_REDISPLAY;
}

/* While a line is edited, Ctrl-C and Ctrl-Z are keys and no signals: a signal is taken on another
 * thread, and one sent at the prompt could come when the next answer has begun. */
static void bind_signals(EditLine *el)
{
    (void)el_set(el, EL_SETTY, "-d", "-isig", NULL);
    (void)el_set(el, EL_BIND, "^C", "em-kill-line", NULL);
    (void)el_set(el, EL_ADDFN, "suspend", "stop until the shell goes on with it", suspend);
    (void)el_set(el, EL_BIND, "^Z", "suspend", NULL);
}

/* Makes the folders of a path, each for the user alone. */
static fathom_err make_folders(const char *path)
{
    char folder[LIMIT_PATH_BYTES];
    (void)snprintf(folder, sizeof folder, "%s", path);
    for (char *at = strchr(folder + 1, '/'); at; at = strchr(at + 1, '/')) {
        *at = '\0';
        if (mkdir(folder, 0700) != 0 && errno != EEXIST) return FATHOM_EIO;
        *at = '/';
    }
    return FATHOM_OK;
}

static void read_history(struct terminal *t)
{
    HistEvent event;
    struct stat st;
    (void)history(t->lines, &event, H_SETSIZE, HISTORY_LINES);
    (void)history(t->lines, &event, H_SETUNIQUE, 1);
    if (!t->path[0] || stat(t->path, &st) != 0) return;
    if (history(t->lines, &event, H_LOAD, t->path) < 0) {
        fprintf(stderr, "fathom: %s cannot be read as a history; it is left as it is\n", t->path);
        t->path[0] = '\0';
    }
}

static void write_history(struct terminal *t)
{
    HistEvent event;
    if (!t->path[0]) return;
    mode_t before = umask(0077);
    if (make_folders(t->path) || history(t->lines, &event, H_SAVE, t->path) < 0) {
        fprintf(stderr, "fathom: the history cannot be written to %s: %s\n", t->path,
                strerror(errno));
    }
    (void)umask(before);
}

fathom_err terminal_open(struct terminal **out, const char *path, fathom_diag *d)
{
    struct terminal *t = mem_calloc(1, sizeof *t);
    *out = NULL;
    if (!t) return FATHOM_ENOMEM;
    (void)snprintf(t->path, sizeof t->path, "%s", path);
    t->lines = history_init();
    t->el = el_init("fathom", stdin, stdout, stderr);
    if (!t->lines || !t->el) {
        t->path[0] = '\0';
        terminal_close(t);
        FAIL(d, FATHOM_EIO, "the terminal cannot be set up for editing");
    }
    (void)el_set(t->el, EL_CLIENTDATA, t);
    (void)el_set(t->el, EL_PROMPT, prompt_text);
    (void)el_set(t->el, EL_EDITOR, "emacs");
    (void)el_set(t->el, EL_SIGNAL, 1);
    (void)el_set(t->el, EL_HIST, history, t->lines);
    (void)el_set(t->el, EL_ADDFN, "complete", "complete a command", complete);
    (void)el_set(t->el, EL_BIND, "^I", "complete", NULL);
    (void)el_set(t->el, EL_BIND, "^R", "em-inc-search-prev", NULL);
    bind_signals(t->el);
    read_history(t);
    *out = t;
    return FATHOM_OK;
}

void terminal_close(struct terminal *t)
{
    if (!t) return;
    if (t->lines) write_history(t);
    if (t->el) el_end(t->el);
    if (t->lines) history_end(t->lines);
    mem_free(t);
}

fathom_err terminal_read(struct terminal *t, struct message_lines *m)
{
    HistEvent event;
    t->going_on = false;
    do {
        int n = 0;
        const char *typed = el_gets(t->el, &n);
        if (!typed || n <= 0) return FATHOM_ECANCEL;
        if (typed[0] != '\n') (void)history(t->lines, &event, H_ENTER, typed);
        t->going_on = message_lines_add(m, typed, strcspn(typed, "\r\n"));
    } while (t->going_on);
    return buf_status(&m->text);
}
