/*
 * consume.c: see consume.h. The calling thread consumes too, so no thread but it is needed.
 */
#include "consume.h"

#include <pthread.h>
#include <unistd.h>

/* What the consumers share. */
struct consumption {
    struct hr_load *load;
    consume_item *consume;
    void *context;
    pthread_mutex_t lock;
    int code; /* the first failure, with its error; guarded by `lock` */
    struct hr_error err;
};

struct consumer {
    struct consumption *shared;
    size_t index;
};

static void fail(struct consumption *shared, const struct hr_error *err)
{
    pthread_mutex_lock(&shared->lock);
    if (shared->code == 0) {
        shared->code = err->code;
        shared->err = *err;
    }
    pthread_mutex_unlock(&shared->lock);
    hr_load_cancel(shared->load);
}

static void *consume_items(void *context)
{
    const struct consumer *consumer = context;
    struct consumption *shared = consumer->shared;
    struct hr_error err;
    size_t item;
    int code;
    while ((code = hr_load_next(shared->load, &item, &err)) == 0) {
        code = shared->consume(shared->context, consumer->index, item, &err);
        if (code < 0 || (code = hr_load_drop(shared->load, item, &err)) < 0)
            break;
    }
    if (code != HR_EEND)
        fail(shared, &err);
    return NULL;
}

int consume_ready(struct hr_load *load, consume_item *consume, void *context, struct hr_error *err)
{
    struct consumption shared = {
        .load = load, .consume = consume, .context = context, .lock = PTHREAD_MUTEX_INITIALIZER};
    struct consumer consumers[CONSUMER_MAX];
    pthread_t threads[CONSUMER_MAX];
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    size_t count = 1;
    for (size_t i = 0; i < CONSUMER_MAX; i++)
        consumers[i] = (struct consumer){&shared, i};
    while (count < CONSUMER_MAX && (long)count < cores &&
           pthread_create(&threads[count], NULL, consume_items, &consumers[count]) == 0)
        count++;
    consume_items(&consumers[0]);
    while (--count > 0)
        pthread_join(threads[count], NULL);
    if (shared.code < 0)
        *err = shared.err;
    return shared.code;
}
