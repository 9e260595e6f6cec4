/* dataset_sonnet.c - prompts of verse: a question, lines that all prompts share, lines of their own
 */
#include <string.h>

#include "base/fail.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/rng.h"
#include "bench/dataset_items.h"

static const char question[] = "Pick as many lines as you can from these poem lines:\n";

/* William Shakespeare, sonnets 18, 29, 30, 55, 73 and 116 (1609), in the public domain. */
static const char *const sonnet_lines[] = {
    "Shall I compare thee to a summer's day?",
    "Thou art more lovely and more temperate:",
    "Rough winds do shake the darling buds of May,",
    "And summer's lease hath all too short a date:",
    "Sometime too hot the eye of heaven shines,",
    "And often is his gold complexion dimmed,",
    "And every fair from fair sometime declines,",
    "By chance, or nature's changing course untrimmed:",
    "But thy eternal summer shall not fade,",
    "Nor lose possession of that fair thou ow'st,",
    "Nor shall death brag thou wander'st in his shade,",
    "When in eternal lines to time thou grow'st,",
    "So long as men can breathe, or eyes can see,",
    "So long lives this, and this gives life to thee.",
    "When in disgrace with fortune and men's eyes",
    "I all alone beweep my outcast state,",
    "And trouble deaf heaven with my bootless cries,",
    "And look upon myself, and curse my fate,",
    "Wishing me like to one more rich in hope,",
    "Featured like him, like him with friends possessed,",
    "Desiring this man's art, and that man's scope,",
    "With what I most enjoy contented least;",
    "Yet in these thoughts my self almost despising,",
    "Haply I think on thee, and then my state,",
    "Like to the lark at break of day arising",
    "From sullen earth, sings hymns at heaven's gate;",
    "For thy sweet love remembered such wealth brings",
    "That then I scorn to change my state with kings.",
    "When to the sessions of sweet silent thought",
    "I summon up remembrance of things past,",
    "I sigh the lack of many a thing I sought,",
    "And with old woes new wail my dear time's waste:",
    "Then can I drown an eye, unused to flow,",
    "For precious friends hid in death's dateless night,",
    "And weep afresh love's long since cancelled woe,",
    "And moan the expense of many a vanished sight:",
    "Then can I grieve at grievances foregone,",
    "And heavily from woe to woe tell o'er",
    "The sad account of fore-bemoaned moan,",
    "Which I new pay as if not paid before.",
    "But if the while I think on thee, dear friend,",
    "All losses are restored and sorrows end.",
    "Not marble, nor the gilded monuments",
    "Of princes, shall outlive this powerful rhyme;",
    "But you shall shine more bright in these contents",
    "Than unswept stone, besmeared with sluttish time.",
    "When wasteful war shall statues overturn,",
    "And broils root out the work of masonry,",
    "Nor Mars his sword, nor war's quick fire shall burn",
    "The living record of your memory.",
    "'Gainst death, and all-oblivious enmity",
    "Shall you pace forth; your praise shall still find room",
    "Even in the eyes of all posterity",
    "That wear this world out to the ending doom.",
    "So, till the judgment that yourself arise,",
    "You live in this, and dwell in lovers' eyes.",
    "That time of year thou mayst in me behold",
    "When yellow leaves, or none, or few, do hang",
    "Upon those boughs which shake against the cold,",
    "Bare ruined choirs, where late the sweet birds sang.",
    "In me thou see'st the twilight of such day",
    "As after sunset fadeth in the west;",
    "Which by and by black night doth take away,",
    "Death's second self, that seals up all in rest.",
    "In me thou see'st the glowing of such fire,",
    "That on the ashes of his youth doth lie,",
    "As the death-bed, whereon it must expire,",
    "Consumed with that which it was nourished by.",
    "This thou perceiv'st, which makes thy love more strong,",
    "To love that well, which thou must leave ere long.",
    "Let me not to the marriage of true minds",
    "Admit impediments. Love is not love",
    "Which alters when it alteration finds,",
    "Or bends with the remover to remove:",
    "O no; it is an ever-fixed mark,",
    "That looks on tempests, and is never shaken;",
    "It is the star to every wandering bark,",
    "Whose worth's unknown, although his height be taken.",
    "Love's not Time's fool, though rosy lips and cheeks",
    "Within his bending sickle's compass come;",
    "Love alters not with his brief hours and weeks,",
    "But bears it out even to the edge of doom.",
    "If this be error and upon me proved,",
    "I never writ, nor no man ever loved.",
};

enum { N_SONNET_LINE = sizeof sonnet_lines / sizeof *sonnet_lines };

/* The lines to draw from, each with its tokens. */
struct verse {
    const char **lines; /* [n] */
    uint32_t *lengths;  /* bytes, the line feed not among them */
    uint32_t *counts;   /* tokens, with the line feed */
    size_t n;
    struct file_map map;
};

static void verse_close(struct verse *v)
{
    mem_free((void *)v->lines);
    mem_free(v->lengths);
    mem_free(v->counts);
    file_map_close(&v->map);
}

static fathom_err add_line(struct verse *v, const struct tokenizer *t, const char *line, size_t n)
{
    struct buf text = {0};
    (void)buf_add(&text, line, n);
    (void)buf_add_char(&text, '\n');
    fathom_err err = buf_status(&text);
    if (!err) err = dataset_count(t, buf_str(&text), text.len, &v->counts[v->n]);
    v->lines[v->n] = line;
    v->lengths[v->n++] = (uint32_t)n;
    buf_free(&text);
    return err;
}

static fathom_err verse_open(struct verse *v, const char *path, const struct tokenizer *t,
                             fathom_diag *d)
{
    memset(v, 0, sizeof *v);
    size_t cap = N_SONNET_LINE + 1;
    if (path) {
        TRY(file_map_open(&v->map, path, d));
        cap = v->map.size / 2 + 1;
    }
    v->lines = mem_alloc_array(cap, sizeof *v->lines);
    v->lengths = mem_alloc_array(cap, sizeof *v->lengths);
    v->counts = mem_alloc_array(cap, sizeof *v->counts);
    if (!v->lines || !v->lengths || !v->counts) return FATHOM_ENOMEM;
    for (size_t i = 0; !path && i < N_SONNET_LINE; i++) {
        TRY(add_line(v, t, sonnet_lines[i], strlen(sonnet_lines[i])));
    }
    const char *at = v->map.data;
    const char *end = v->map.size ? at + v->map.size : at;
    while (at < end) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        if (!stop) stop = end;
        if (stop > at) TRY(add_line(v, t, at, (size_t)(stop - at)));
        at = stop + 1;
    }
    if (v->n == 0) FAIL(d, FATHOM_EINVAL, "%s: there are no lines of verse in it", path);
    return FATHOM_OK;
}

/* Adds random lines while the text stays within n_token; returns its tokens. */
static uint32_t add_lines(struct buf *text, const struct verse *v, uint32_t n_now, uint32_t n_token,
                          uint64_t *state)
{
    for (;;) {
        size_t i = rng_below(state, v->n);
        if (n_now + v->counts[i] > n_token) return n_now;
        (void)buf_add(text, v->lines[i], v->lengths[i]);
        (void)buf_add_char(text, '\n');
        n_now += v->counts[i];
    }
}

fathom_err dataset_fill_sonnet(struct dataset *s, const struct dataset_options *o,
                               const struct tokenizer *t, fathom_diag *d)
{
    struct verse v;
    struct buf text = {0};
    uint64_t state = o->seed;
    uint32_t n_question;
    fathom_err err = verse_open(&v, o->path, t, d);
    if (err) goto done;
    TRY_GOTO(dataset_count(t, question, strlen(question), &n_question), done);
    n_question += o->n_added;
    if (o->n_input < n_question || o->n_prefix > o->n_input) {
        err = diag_fail(d, FATHOM_EINVAL,
                        "--sonnet-input-len %u: needed is at least %u, which the question takes, "
                        "and --sonnet-prefix-len (%u)",
                        o->n_input, n_question, o->n_prefix);
        goto done;
    }
    (void)buf_add_str(&text, question);
    uint32_t n_prefix = add_lines(&text, &v, n_question, o->n_prefix, &state);
    size_t n_prefix_byte = text.len;
    for (size_t i = 0; i < o->n; i++) {
        uint64_t item = rng_mix(o->seed, 1, i);
        if (!text.failed) buf_truncate(&text, n_prefix_byte);
        (void)add_lines(&text, &v, n_prefix, o->n_input, &item);
        TRY_GOTO(dataset_add(s, o, t, &text, o->n_output), done);
    }
done:
    buf_free(&text);
    verse_close(&v);
    return err;
}
