/* A model server that costs next to nothing: one thread, epoll, answers of one form.
 *
 *   engine PORT
 *
 * The prompt sets the pace: "tokens=64 first=20 each=5" gives 64 chunks, the first after 20 ms, then one each 5 ms. Without
 * "stream":true the whole answer comes at once. Requests carry Content-Length; keep-alive always.
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

#define MOST 4096
#define IN 65536
#define OUT 262144

typedef struct {
    int fd, at_work, stream, tokens, sent;
    long each, due;
    size_t inlen, outlen;
    char in[IN + 1], out[OUT];
} conn;

static int ep;
static conn *at[MOST];
static int most;

static long clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

static void flush(conn *c) {
    ssize_t n = c->outlen ? send(c->fd, c->out, c->outlen, MSG_NOSIGNAL) : 0;
    if (n > 0) memmove(c->out, c->out + n, c->outlen -= n);
    struct epoll_event e = {.events = EPOLLIN | (c->outlen ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(ep, EPOLL_CTL_MOD, c->fd, &e);
}

static void put(conn *c, const char *text, size_t n) {
    if (c->outlen + n > OUT) return;
    if (!c->outlen) {
        ssize_t w = send(c->fd, text, n, MSG_NOSIGNAL);
        if (w == (ssize_t)n) return;
        if (w > 0) text += w, n -= w;
    }
    memcpy(c->out + c->outlen, text, n);
    c->outlen += n;
    struct epoll_event e = {.events = EPOLLIN | EPOLLOUT, .data.ptr = c};
    epoll_ctl(ep, EPOLL_CTL_MOD, c->fd, &e);
}

static int framed(char *to, const char *json) { return sprintf(to, "%zx\r\ndata: %s\n\n\r\n", strlen(json) + 8, json); }

static void whole(conn *c) {
    char text[601], json[1400], all[2048];
    memset(text, 'a', 600), text[600] = 0;
    int n = sprintf(json, "{\"id\":\"e\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\"message\":"
        "{\"role\":\"assistant\",\"content\":\"%s\"},\"logprobs\":null,\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":20,"
        "\"completion_tokens\":%d,\"total_tokens\":%d}}", text, c->tokens, c->tokens + 20);
    put(c, all, sprintf(all, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", n, json));
    c->at_work = 0;
}

static void next_chunk(conn *c) {
    char json[512], all[2048];
    int last = ++c->sent == c->tokens, n;
    sprintf(json, "{\"id\":\"e\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":"
        "{%s\"content\":\" token\"},\"logprobs\":null,\"finish_reason\":%s}]}", c->sent == 1 ? "\"role\":\"assistant\"," : "",
        last ? "\"stop\"" : "null");
    n = framed(all, json);
    if (last) {
        sprintf(json, "{\"id\":\"e\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[],\"usage\":"
            "{\"prompt_tokens\":20,\"completion_tokens\":%d,\"total_tokens\":%d}}", c->tokens, c->tokens + 20);
        n += framed(all + n, json);
        n += framed(all + n, "[DONE]");
        n += sprintf(all + n, "0\r\n\r\n");
        c->at_work = 0;
    }
    put(c, all, n);
    c->due += c->each;
}

static long number(const char *text, const char *name, long otherwise) {
    const char *p = strstr(text, name);
    return p ? atol(p + strlen(name)) : otherwise;
}

static void requests(conn *c) {
    while (!c->at_work) {
        c->in[c->inlen] = 0;
        char *end = strstr(c->in, "\r\n\r\n");
        if (!end) return;
        char *length = strcasestr(c->in, "\ncontent-length:");
        size_t body = length && length < end ? atol(length + 16) : 0, used = end + 4 - c->in + body;
        if (c->inlen < used) return;
        char kept = c->in[used];
        c->in[used] = 0;
        c->stream = strstr(end, "\"stream\":true") != NULL;
        c->tokens = number(end, "tokens=", 64), c->sent = 0, c->at_work = 1;
        c->each = number(end, "each=", 0) * 1000000;
        c->due = clock_ns() + number(end, "first=", 0) * 1000000;
        c->in[used] = kept;
        memmove(c->in, c->in + used, c->inlen -= used);
        if (!c->stream) whole(c);
        else {
            static const char head[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
            put(c, head, sizeof head - 1);
        }
    }
}

static void drop(conn *c) {
    for (int i = 0; i < most; i++)
        if (at[i] == c) { at[i] = at[--most]; break; }
    close(c->fd);
    free(c);
}

int main(int argc, char **argv) {
    int one = 1, door = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(argc > 1 ? atoi(argv[1]) : 0), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    setsockopt(door, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(door, (void *)&address, sizeof address) || listen(door, 1024)) return perror("engine"), 1;
    ep = epoll_create1(0);
    struct epoll_event e = {.events = EPOLLIN}, found[256];
    epoll_ctl(ep, EPOLL_CTL_ADD, door, &e);
    for (;;) {
        long now = clock_ns(), soonest = now + 100000000L;
        for (int i = 0; i < most; i++) {
            conn *c = at[i];
            while (c->at_work && !c->outlen && c->due <= now) next_chunk(c);
            if (c->at_work && c->due < soonest) soonest = c->due;
            if (!c->at_work) requests(c);
        }
        long left = soonest - clock_ns();
        struct timespec wait = {0, left > 0 ? left : 0};
        int n = epoll_pwait2(ep, found, 256, &wait, NULL);
        for (int i = 0; i < n; i++) {
            conn *c = found[i].data.ptr;
            if (!c) {
                int fd = accept4(door, NULL, NULL, SOCK_NONBLOCK);
                if (fd < 0 || most == MOST) { if (fd >= 0) close(fd); continue; }
                setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                c = at[most++] = calloc(1, sizeof *c);
                c->fd = fd;
                e = (struct epoll_event){.events = EPOLLIN, .data.ptr = c};
                epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e);
                continue;
            }
            if (found[i].events & EPOLLOUT) flush(c);
            if (!(found[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))) continue;
            ssize_t got = recv(c->fd, c->in + c->inlen, IN - c->inlen, 0);
            if (got == 0 || (got < 0 && errno != EAGAIN)) { drop(c); continue; }
            if (got > 0) c->inlen += got, requests(c);
        }
    }
}
