/* Clients that check every answer: one thread, epoll, keep-alive.
 *
 *   load PORT KEY MODEL PROMPT CONNECTIONS SECONDS CHUNKS
 *
 * CHUNKS 0: plain answers, each a 200 with usage. CHUNKS n: streams, each a 200 with at least n events and [DONE]. Prints one
 * line of JSON, times in microseconds.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#define ROOM 262144

typedef struct { int fd, busy, events; size_t len, seen; double began, first; char *data; } conn;
typedef struct { double *at; size_t n, room; } series;

static series latency, first_token;
static long good, bad, reconnects, chunks;
static char message[8192];
static int length, want, mark;
static double deadline;
static struct sockaddr_in address;
static int ep;

static double clock_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static void note(series *s, double x) {
    if (s->n == s->room) s->at = realloc(s->at, (s->room = s->room * 2 + 1024) * sizeof *s->at);
    s->at[s->n++] = x;
}

static int order(const void *a, const void *b) { return (*(double *)a > *(double *)b) - (*(double *)a < *(double *)b); }
static double part(series *s, double p) { return s->n ? s->at[(size_t)(p * (s->n - 1))] : 0; }

static void dial(conn *c) {
    int one = 1;
    if (c->fd) close(c->fd);
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(c->fd, (void *)&address, sizeof address)) perror("load"), exit(1);
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(ep, EPOLL_CTL_ADD, c->fd, &e);
}

static void ask(conn *c) {
    static long serial;
    char number[16];
    c->busy = clock_us() < deadline, c->len = c->seen = 0, c->events = 0, c->first = 0;
    if (!c->busy) return;
    sprintf(number, "%09ld", serial++ % 1000000000L);
    memcpy(message + mark, number, 9);
    c->began = clock_us();
    if (send(c->fd, message, length, MSG_NOSIGNAL) != length) exit(1);
}

/* Whether the answer is all there. */
static int complete(conn *c) {
    c->data[c->len] = 0;
    char *body = strstr(c->data, "\r\n\r\n"), *p;
    if (!body) return 0;
    body += 4;
    if (want) {
        if (c->seen < (size_t)(body - c->data)) c->seen = body - c->data;
        while ((p = memmem(c->data + c->seen, c->len - c->seen, "data: ", 6))) c->events++, c->seen = p + 6 - c->data;
        if (c->events && !c->first) c->first = clock_us();
        return c->len > 5 && !memcmp(c->data + c->len - 5, "0\r\n\r\n", 5);
    }
    p = strcasestr(c->data, "\ncontent-length:");
    return p && p < body && c->len >= body - c->data + (size_t)atol(p + 16);
}

static void done(conn *c) {
    int fine = !strncmp(c->data, "HTTP/1.1 200", 12) && strstr(c->data, "\"usage\":{");
    if (want) fine = fine && c->events >= want && strstr(c->data, "data: [DONE]");
    if (!fine) { if (!bad++) fprintf(stderr, "bad answer: %.300s\n", c->data); return; }
    good++, chunks += c->events;
    note(&latency, clock_us() - c->began);
    if (want) note(&first_token, c->first - c->began);
}

int main(int argc, char **argv) {
    if (argc != 8) return fprintf(stderr, "usage: load PORT KEY MODEL PROMPT CONNECTIONS SECONDS CHUNKS\n"), 2;
    int many = atoi(argv[5]);
    char body[4096];
    want = atoi(argv[7]);
    sprintf(body, "{\"model\":\"%s\",\"messages\":[{\"role\":\"system\",\"content\":\"Be brief.\"},{\"role\":\"user\",\"content\":\"000000000 %s\"}],"
        "\"max_tokens\":256,\"temperature\":0.7%s}", argv[3], argv[4], want ? ",\"stream\":true,\"stream_options\":{\"include_usage\":true}" : "");
    length = sprintf(message, "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\n"
        "Accept: application/json\r\nUser-Agent: OpenAI/Python 2.1.0\r\nX-Stainless-Lang: python\r\nX-Stainless-Async: false\r\n"
        "Content-Length: %zu\r\n\r\n%s", argv[2], strlen(body), body);
    mark = strstr(message, "000000000 ") - message;
    address = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(atoi(argv[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    ep = epoll_create1(0);
    conn *all = calloc(many, sizeof *all);
    for (int i = 0; i < many; i++) all[i].data = malloc(ROOM + 1), dial(&all[i]), usleep(300);
    double start = clock_us();
    deadline = start + atof(argv[6]) * 1e6;
    for (int i = 0; i < many; i++) ask(&all[i]);
    struct epoll_event found[256];
    for (int busy = many; busy;) {
        int n = epoll_wait(ep, found, 256, 30000);
        if (!n) { bad += busy; fprintf(stderr, "nothing came for 30 s\n"); break; }
        for (int i = 0; i < n; i++) {
            conn *c = found[i].data.ptr;
            ssize_t got = recv(c->fd, c->data + c->len, ROOM - c->len, MSG_DONTWAIT);
            if (got < 0 && errno == EAGAIN) continue;
            if (got <= 0) {
                reconnects++;
                if (c->busy) bad++;
                dial(c), ask(c);
            } else {
                c->len += got;
                if (!c->busy || !complete(c)) continue;
                done(c), ask(c);
            }
            if (!c->busy) { busy = 0; for (int j = 0; j < many; j++) busy += all[j].busy; }
        }
    }
    double seconds = (clock_us() - start) / 1e6;
    qsort(latency.at, latency.n, sizeof(double), order), qsort(first_token.at, first_token.n, sizeof(double), order);
    printf("{\"good\":%ld,\"bad\":%ld,\"reconnects\":%ld,\"seconds\":%.3f,\"chunks\":%ld,\"p50\":%.1f,\"p99\":%.1f,\"ttft50\":%.1f,\"ttft99\":%.1f}\n",
        good, bad, reconnects, seconds, chunks, part(&latency, .5), part(&latency, .99), part(&first_token, .5), part(&first_token, .99));
    return 0;
}
