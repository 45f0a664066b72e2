/* Blocks whose types only debug information tells, as C programs have them. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct entry {
    struct entry *next;
    char *key;
    long hash, used;
} entry;

typedef struct {
    entry **buckets;
    size_t size, used;
} table;

struct vertex {
    double x, y, z;
};

/* Only declared where the pointer is. */
struct hidden;

typedef struct {
    struct vertex *vertices;
    void *anything;
    unsigned char *bytes;
    double *numbers;
    char **names;
    struct hidden *hidden;
} record;

struct message {
    struct message *answer;
    unsigned length;
    char text[];
};

/* Others begin with it. */
struct shape {
    const char *name;
    long kind;
};

struct circle {
    struct shape shape;
    double numbers[5];
};

table all;
record *only;
struct message *message;
struct shape *shape;
static struct circle *volatile circle;
/* Only this points to it, and it may be any of those that begin with a shape. */
struct shape *some_shape;
union {
    entry *one;
    record *other;
} either;

struct hidden {
    long numbers[15];
};

int main(void) {
    all.size = 64;
    all.buckets = calloc(all.size, sizeof *all.buckets);
    for (int i = 0; i < 100; i++) {
        entry *made = calloc(1, sizeof *made);
        made->key = strdup("a key of an entry");
        made->next = all.buckets[i % 64];
        all.buckets[i % 64] = made;
    }
    only = calloc(1, sizeof *only);
    only->vertices = calloc(50, sizeof *only->vertices);
    only->anything = malloc(1000);
    only->bytes = malloc(2000);
    only->numbers = calloc(100, sizeof *only->numbers);
    only->names = calloc(10, sizeof *only->names);
    only->names[0] = strdup("the name of a record");
    only->hidden = calloc(1, sizeof *only->hidden);
    message = calloc(1, 300);
    circle = calloc(1, sizeof *circle);
    shape = &((struct circle *)circle)->shape;
    some_shape = calloc(1, sizeof(struct circle));
    either.one = calloc(1, sizeof(record));
    puts("ready");
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0) {
    }
    return 0;
}
