/*
 * pieces.h: JSON text in pieces, each of them read by jansson. Containers whose members matter are walked here, because
 * jansson's objects keep neither the order nor what stands twice; every other value is one piece.
 *
 * Where jansson and serde_json differ: integers over 64 bits are reals to both (JSON_DECODE_INT_AS_REAL), NUL in
 * strings is allowed (JSON_ALLOW_NUL), nesting is counted here, a raw NUL, which jansson overlooks behind a number, is
 * refused here, and an escaped one in a key inside a piece makes the whole text's verdict unknown. Numbers that are
 * rounded to infinity by one of the two only: pieces_at_the_edge().
 */
#ifndef HR_FUZZ_PIECES_H
#define HR_FUZZ_PIECES_H

#include <jansson.h>
#include <stddef.h>

struct pieces {
    const char *text; /* `size` bytes and a NUL */
    size_t size, at;
    unsigned depth;
    int is_unknown; /* jansson cannot say */
};

/* The next byte that is not white space, or 0 at the end. */
char pieces_peek(struct pieces *pieces);
/* Consumes an opening bracket; 0 when something else stands there or the nesting is too deep. */
int pieces_enter(struct pieces *pieces, char bracket);
/* 1: a member follows, 0: the container was closed, -1: neither. *is_first is 1 at first. */
int pieces_more(struct pieces *pieces, char closing_bracket, int *is_first);
/* The next value, or NULL; the caller gives it back with json_decref(). */
json_t *pieces_value(struct pieces *pieces);
/* The next string, or NULL; of a key with its colon. */
json_t *pieces_string(struct pieces *pieces);
json_t *pieces_key(struct pieces *pieces);
int pieces_skip(struct pieces *pieces);
/* Only white space is left. */
int pieces_finish(struct pieces *pieces);

/* UTF-8 by jansson's opinion. */
int pieces_are_utf8(const char *text, size_t size);
/* Some number of the text lies so close to the largest double that readers round it in different ways. */
int pieces_at_the_edge(const char *text);
/* Most open brackets at any place of a valid text. */
unsigned pieces_depth(const char *text, size_t size);

#endif
