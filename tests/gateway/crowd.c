/* Clients that ask at a set pace and note when they were last served.
 *
 *   crowd PORT[,PORT…] KEY MODEL CONNECTIONS RATE SECONDS
 *
 * One thread, epoll, kept connections, plain chats; RATE requests a second over all of them. Prints one line of JSON: how many
 * answers of each status, and when the last 200 and the first of any other status had come, in seconds of CLOCK_MONOTONIC.
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

#define ROOM 65536
#define MOST 1024

typedef struct { int fd, port, busy; size_t len; char data[ROOM + 1]; } conn;

static conn *idle[MOST];
static int ep, idles, ports[16], many_ports;
static long statuses[600], broken;
static double last_good, first_other;
static char message[4096];
static int length, mark;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void dial(conn *c) {
    int one = 1;
    if (c->fd) close(c->fd);
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(c->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (connect(c->fd, (void *)&to, sizeof to)) perror("crowd"), exit(1);
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(ep, EPOLL_CTL_ADD, c->fd, &e);
}

static void ask(conn *c) {
    static long serial;
    char number[16];
    sprintf(number, "%09ld", serial++ % 1000000000L);
    memcpy(message + mark, number, 9);
    c->len = 0, c->busy = 1;
    if (send(c->fd, message, length, MSG_NOSIGNAL) != length) { broken++, dial(c), c->busy = 0; idle[idles++] = c; }
}

/* The status of the answer if it is all there, else 0. */
static int answered(conn *c) {
    c->data[c->len] = 0;
    char *body = strstr(c->data, "\r\n\r\n"), *p = strcasestr(c->data, "\ncontent-length:");
    if (!body || !p || p > body) return 0;
    return c->len >= body + 4 - c->data + (size_t)atol(p + 16) ? atoi(c->data + 9) : 0;
}

static void take(conn *c) {
    ssize_t got = recv(c->fd, c->data + c->len, ROOM - c->len, MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) {
        dial(c);
        if (c->busy) broken++, c->busy = 0, idle[idles++] = c;
        return;
    }
    c->len += got;
    int status = c->busy ? answered(c) : 0;
    if (!status) return;
    double at = now();
    statuses[status % 600]++;
    if (status == 200) last_good = at;
    else if (!first_other) first_other = at;
    c->busy = 0;
    if (strcasestr(c->data, "\nconnection: close")) dial(c);
    idle[idles++] = c;
}

int main(int argc, char **argv) {
    if (argc != 7) return fprintf(stderr, "usage: crowd PORTS KEY MODEL CONNECTIONS RATE SECONDS\n"), 2;
    for (char *p = strtok(strdup(argv[1]), ","); p; p = strtok(NULL, ",")) ports[many_ports++] = atoi(p);
    int many = atoi(argv[4]);
    double rate = atof(argv[5]), seconds = atof(argv[6]);
    char body[1024];
    sprintf(body, "{\"model\":\"%s\",\"messages\":[{\"role\":\"user\",\"content\":\"000000000 tokens=1\"}],\"max_tokens\":1}", argv[3]);
    length = sprintf(message, "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\n"
        "Content-Length: %zu\r\n\r\n%s", argv[2], strlen(body), body);
    mark = strstr(message, "000000000 ") - message;
    ep = epoll_create1(0);
    for (int i = 0; i < many; i++) {
        conn *c = calloc(1, sizeof *c);
        c->port = ports[i % many_ports];
        dial(c), idle[idles++] = c;
    }
    double start = now(), end = start + seconds;
    long asked = 0;
    struct epoll_event found[256];
    for (double at = start; at < end; at = now()) {
        while (idles && asked < (at - start) * rate) asked++, ask(idle[--idles]);
        if (!idles && asked < (at - start) * rate - many) asked = (at - start) * rate - many; /* nobody is free: not made up for */
        int n = epoll_wait(ep, found, 256, 1);
        for (int i = 0; i < n; i++) take(found[i].data.ptr);
    }
    printf("{\"seconds\":%.3f,\"broken\":%ld,\"last_good\":%.6f,\"first_other\":%.6f,\"statuses\":{", seconds, broken, last_good, first_other);
    for (int i = 0, n = 0; i < 600; i++) if (statuses[i]) printf("%s\"%d\":%ld", n++ ? "," : "", i, statuses[i]);
    printf("},\"start\":%.6f}\n", start);
    return 0;
}
