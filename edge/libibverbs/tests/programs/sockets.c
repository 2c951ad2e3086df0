/* Plain sockets: `sockets server PORT` gives back what it gets until its client ends; `sockets client ADDRESS PORT` sends
 * 4 MiB in pieces of many lengths and checks every byte of the answer. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static char buffer[65536], answer[65536];

static int fail(const char *what)
{
    perror(what);
    return 1;
}

static int server(struct sockaddr_in *address)
{
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)address, sizeof *address) || listen(listener, 1))
        return fail("listen");
    int peer = accept(listener, NULL, NULL);
    ssize_t len;
    while ((len = recv(peer, buffer, sizeof buffer, 0)) > 0)
        for (ssize_t sent = 0, more; sent < len; sent += more)
            if ((more = send(peer, buffer + sent, len - sent, 0)) < 0)
                return fail("send");
    close(peer);
    close(listener);
    return len < 0 ? fail("recv") : 0;
}

static int client(struct sockaddr_in *address)
{
    int peer = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(peer, (struct sockaddr *)address, sizeof *address))
        return fail("connect");
    for (size_t done = 0, len = 1; done < 4 << 20; done += len, len = len * 3 % 40000 + 1) {
        for (size_t i = 0; i < len; i++)
            buffer[i] = (done + i) * 31 >> 3;
        for (size_t sent = 0; sent < len;) {
            ssize_t more = send(peer, buffer + sent, len - sent, 0);
            if (more < 0)
                return fail("send");
            sent += more;
        }
        for (size_t got = 0; got < len;) {
            ssize_t more = recv(peer, answer + got, len - got, 0);
            if (more <= 0)
                return fail("recv");
            got += more;
        }
        if (memcmp(buffer, answer, len) != 0) {
            fprintf(stderr, "wrong bytes behind %zu\n", done);
            return 1;
        }
    }
    shutdown(peer, SHUT_RDWR);
    close(peer);
    puts("4194304 bytes and back");
    return 0;
}

int main(int argc, char **argv)
{
    int is_server = argc == 3;
    if (argc < 3)
        return 2;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[argc - 1]))};
    if (!is_server)
        inet_pton(AF_INET, argv[2], &address.sin_addr);
    return is_server ? server(&address) : client(&address);
}
