/* Two programs that talk over one connection, and one that takes it over in the middle.
 *
 *   serve PORT READ SEND HOW PROGRAM TOTAL_IN TOTAL_OUT   accepts, reads READ bytes, sends SEND, and
 *                                                         hands the rest to PROGRAM by way of HOW
 *   call PORT TOTAL_IN TOTAL_OUT WAY                      the other end, all of it
 *   talk FD IN TOTAL_IN OUT TOTAL_OUT                     goes on from there; FD -1 comes by SCM_RIGHTS
 *
 * Every byte tells where it is in the stream, and is compared. Exit status 0: all of them, then the end.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static unsigned char byte_at(long at) { return (unsigned char)((unsigned long)(at * 2654435761ul) >> 24); }

static void fail(const char *what, long a, long b) {
	dprintf(2, "%s: %ld %ld: %s\n", what, a, b, strerror(errno));
	exit(1);
}

/* Returns how many came; 0 at the end; -1 if there was nothing. */
static long take(int fd, long at, long most) {
	static __thread unsigned char buffer[30000];
	long got = read(fd, buffer, most < (long)sizeof buffer ? most : (long)sizeof buffer);
	if (got < 0 && (errno == EAGAIN || errno == EINTR)) return -1;
	if (got < 0) fail("read", at, most);
	for (long i = 0; i < got; i++)
		if (buffer[i] != byte_at(at + i)) fail("wrong byte", at + i, buffer[i]);
	return got;
}

static long give(int fd, long at, long left) {
	static __thread unsigned char buffer[20000];
	long most = left < (long)sizeof buffer ? left : (long)sizeof buffer;
	for (long i = 0; i < most; i++) buffer[i] = byte_at(at + i);
	long sent = send(fd, buffer, most, MSG_NOSIGNAL);
	if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
	if (sent < 0) fail("send", at, left);
	return sent;
}

struct half { int fd; long from, to; };

static void *give_all(void *arg) {
	struct half *h = arg;
	while (h->from < h->to) h->from += give(h->fd, h->from, h->to - h->from);
	shutdown(h->fd, SHUT_WR);
	return NULL;
}

static void take_all(int fd, long at, long total) {
	for (;;) {
		long got = take(fd, at, 1 << 20);
		if (got == 0) break;
		if (got > 0) at += got;
	}
	if (at != total) fail("the end came early", at, total);
}

static int talk(int fd, long in, long total_in, long out, long total_out, const char *way) {
	if (!strcmp(way, "threads")) {
		pthread_t thread;
		struct half h = { fd, out, total_out };
		pthread_create(&thread, NULL, give_all, &h);
		take_all(fd, in, total_in);
		pthread_join(thread, NULL);
		return 0;
	}
	if (!strcmp(way, "turns")) { /* all is said before anything is heard, as a request is */
		struct half h = { fd, out, total_out };
		give_all(&h);
		take_all(fd, in, total_in);
		return 0;
	}
	if (!strcmp(way, "leaves")) { /* says everything and is gone */
		struct half h = { fd, out, total_out };
		while (h.from < h.to) h.from += give(fd, h.from, h.to - h.from);
		return 0;
	}
	if (!strncmp(way, "closes", 6)) { /* the same, and closes, which takes no time; "closespoor": with no right to long queues */
		struct half h = { fd, out, total_out };
		while (h.from < h.to) h.from += give(fd, h.from, h.to - h.from);
		usleep(2500000); /* by now the other end has left */
		if (!strcmp(way, "closespoor") && geteuid() == 0 && seteuid(65534)) fail("seteuid", 0, 0);
		struct timespec start, end;
		clock_gettime(CLOCK_MONOTONIC, &start);
		close(fd);
		clock_gettime(CLOCK_MONOTONIC, &end);
		long ms = (end.tv_sec - start.tv_sec) * 1000 + (end.tv_nsec - start.tv_nsec) / 1000000;
		dprintf(2, "close took %ld ms\n", ms);
		return 0;
	}
	if (!strcmp(way, "late")) { /* reads when the other end has closed long ago: all of it, or hears that some is lost */
		usleep(8000000);
		for (;;) {
			static unsigned char bytes[30000];
			ssize_t got = read(fd, bytes, sizeof bytes);
			if (got < 0 && errno == ECONNRESET) { dprintf(2, "reset after %ld\n", in); return 0; }
			if (got < 0) fail("read", in, 0);
			if (got == 0) break;
			for (ssize_t i = 0; i < got; i++)
				if (bytes[i] != byte_at(in + i)) fail("wrong byte", in + i, bytes[i]);
			in += got;
		}
		if (in != total_in) fail("the end came early", in, total_in);
		dprintf(2, "all came\n");
		return 0;
	}
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
	int e = -1, ended = 0, said = 0;
	if (!strcmp(way, "epoll") || !strcmp(way, "edge")) {
		struct epoll_event event = { .events = EPOLLIN | EPOLLOUT | (!strcmp(way, "edge") ? EPOLLET : 0) };
		e = epoll_create1(0);
		epoll_ctl(e, EPOLL_CTL_ADD, fd, &event);
	}
	while (!ended || !said) {
		struct pollfd p = { fd, (short)((ended ? 0 : POLLIN) | (said ? 0 : POLLOUT)), 0 };
		if (e >= 0) {
			struct epoll_event event;
			if (epoll_wait(e, &event, 1, 20000) <= 0) fail("epoll_wait", in, out);
			p.revents = (short)event.events;
		} else if (poll(&p, 1, 20000) <= 0) fail("poll", in, out);
		for (;;) {
			if (ended) break;
			long got = take(fd, in, 1 << 20);
			if (got < 0) break;
			if (got == 0) ended = 1;
			in += got > 0 ? got : 0;
		}
		while (!said) {
			long sent = give(fd, out, total_out - out);
			out += sent;
			if (out == total_out) { said = 1; shutdown(fd, SHUT_WR); }
			else if (sent == 0) break;
		}
		if (said && e >= 0) {
			struct epoll_event event = { .events = EPOLLIN };
			epoll_ctl(e, EPOLL_CTL_MOD, fd, &event);
		}
	}
	if (in != total_in) fail("the end came early", in, total_in);
	return 0;
}

static int receive_descriptor(int over) {
	char data[1], control[CMSG_SPACE(sizeof(int))];
	struct iovec part = { data, 1 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
	if (recvmsg(over, &message, 0) != 1) fail("recvmsg", over, 0);
	int fd;
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
	return fd;
}

static void send_descriptor(int over, int fd) {
	char data[1] = "", control[CMSG_SPACE(sizeof(int))] = "";
	struct iovec part = { data, 1 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(header), &fd, sizeof fd);
	if (sendmsg(over, &message, 0) != 1) fail("sendmsg", over, fd);
}

static int finish(pid_t pid) {
	int status;
	if (waitpid(pid, &status, 0) != pid) fail("waitpid", pid, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 99;
}

static int serve(int argc, char **argv) {
	if (argc < 7) return 98;
	long reads = atol(argv[3]), sends = atol(argv[4]);
	const char *how = argv[5], *program = argv[6];
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(argv[2])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 9)) fail("listen", 0, 0);
	dprintf(1, "ready\n");
	int over = -1;
	pid_t receiver = 0;
	char in[20], out[20], number[20];
	snprintf(in, sizeof in, "%ld", reads);
	snprintf(out, sizeof out, "%ld", sends);
	if (!strcmp(how, "scm") || !strcmp(how, "scmpath")) {
		/* The receiver has been there before, so it cannot know the numbers but from here. */
		int ends[2];
		char path[40];
		snprintf(path, sizeof path, "@%d", getpid());
		struct sockaddr_un name = { .sun_family = AF_UNIX };
		memcpy(name.sun_path + 1, path, strlen(path));
		int gate = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (!strcmp(how, "scm")) socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
		else if (bind(gate, (struct sockaddr *)&name, sizeof name) || listen(gate, 1)) fail("gate", 0, 0);
		if (!(receiver = fork())) {
			if (!strcmp(how, "scm")) snprintf(number, sizeof number, "%d", -100 - ends[1]);
			char *args[] = { (char *)program, "talk", strcmp(how, "scm") ? path : number, in, argv[7], out, argv[8], NULL };
			execv(program, args);
			fail("execv", 0, 0);
		}
		if (strcmp(how, "scm")) {
			over = accept(gate, NULL, NULL);
		} else {
			close(ends[1]);
			over = ends[0];
		}
		char ready;
		if (read(over, &ready, 1) != 1) fail("receiver", 0, 0);
	}
	struct pollfd comes = { listener, POLLIN, 0 };
	poll(&comes, 1, 20000);
	usleep(20000); /* the client is there, and has offered rings */
	int fd = accept(listener, NULL, NULL);
	if (fd < 0) fail("accept", 0, 0);
	for (long at = 0; at < reads;) {
		long got = take(fd, at, reads - at);
		if (got == 0) fail("end", at, reads);
		if (got > 0) at += got;
	}
	for (long at = 0; at < sends;) at += give(fd, at, sends - at);
	const char *pause = getenv("TALK_PAUSE");
	usleep(pause ? 1000 * atoi(pause) : 12000); /* by now the client talks through rings */
	snprintf(number, sizeof number, "%d", fd);
	char *args[] = { (char *)program, "talk", number, in, argv[7], out, argv[8], NULL };
	if (!strcmp(how, "exec")) {
		execv("/does/not/exist", args); /* fails, and everything goes on */
		execv(program, args);
	} else if (!strcmp(how, "execl")) {
		execl(program, program, "talk", number, in, argv[7], out, argv[8], NULL);
	} else if (!strcmp(how, "execle")) {
		char *none[] = { NULL };
		execle(program, program, "talk", number, in, argv[7], out, argv[8], NULL, none);
	} else if (!strcmp(how, "fork")) {
		pid_t pid = fork();
		if (!pid) {
			execvp(program, args);
			_exit(97);
		}
		close(fd);
		return finish(pid);
	} else if (!strcmp(how, "dup")) {
		pid_t pid = fork();
		if (!pid) {
			dup2(fd, 0);
			dup2(fd, 1);
			close(fd);
			args[2] = "0";
			execve(program, args, environ);
			_exit(97);
		}
		close(fd);
		return finish(pid);
	} else if (!strcmp(how, "vfork")) {
		pid_t pid = vfork();
		if (!pid) {
			dup2(fd, 40);
			close(fd);
			args[2] = "40";
			execve(program, args, environ);
			_exit(97);
		}
		close(fd);
		return finish(pid);
	} else if (!strcmp(how, "spawn")) {
		pid_t pid;
		posix_spawn_file_actions_t actions;
		posix_spawn_file_actions_init(&actions);
		posix_spawn_file_actions_adddup2(&actions, fd, 0);
		args[2] = "0";
		if (posix_spawn(&pid, program, &actions, NULL, args, environ)) fail("posix_spawn", 0, 0);
		close(fd);
		return finish(pid);
	} else if (!strcmp(how, "inherit")) {
		pid_t pid;
		if (posix_spawnp(&pid, program, NULL, NULL, args, environ)) fail("posix_spawnp", 0, 0);
		close(fd);
		return finish(pid);
	} else if (over >= 0) {
		send_descriptor(over, fd);
		close(fd);
		return finish(receiver);
	} else if (!strcmp(how, "fails")) {
		/* The program is not there: the one that wanted to start it goes on. */
		char *none[] = { NULL };
		execve("/does/not/exist", args, none);
		return talk(fd, reads, atol(argv[7]), sends, atol(argv[8]), "epoll");
	} else if (!strcmp(how, "system")) {
		/* Another program had the descriptor, and did nothing with it. */
		if (system("true")) fail("system", 0, 0);
		return talk(fd, reads, atol(argv[7]), sends, atol(argv[8]), "poll");
	}
	fail(how, 0, 0);
	return 1;
}

int main(int argc, char **argv) {
	if (argc > 6 && !strcmp(argv[1], "talk")) {
		int fd = atoi(argv[2]), over = -1;
		if (argv[2][0] == '@') {
			struct sockaddr_un name = { .sun_family = AF_UNIX };
			memcpy(name.sun_path + 1, argv[2], strlen(argv[2]));
			over = socket(AF_UNIX, SOCK_STREAM, 0);
			if (connect(over, (struct sockaddr *)&name, sizeof name)) fail("gate", 0, 0);
		} else if (fd <= -100) over = -100 - fd;
		if (over >= 0) {
			if (write(over, "", 1) != 1) fail("write", 0, 0);
			fd = receive_descriptor(over);
		}
		const char *way = getenv("TALK_WAY");
		return talk(fd, atol(argv[3]), atol(argv[4]), atol(argv[5]), atol(argv[6]), way ? way : "threads");
	}
	if (argc > 5 && !strcmp(argv[1], "call")) {
		struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(argv[2])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
		int fd = socket(AF_INET, SOCK_STREAM, 0);
		if (connect(fd, (struct sockaddr *)&address, sizeof address)) fail("connect", 0, 0);
		/* A part goes through the kernel, before the server can have accepted. */
		long first = atol(argv[4]) / 3;
		if (first > 5000) first = 5000;
		for (long at = 0; at < first;) at += give(fd, at, first - at);
		usleep(30000);
		return talk(fd, 0, atol(argv[3]), first, atol(argv[4]), argv[5]);
	}
	return serve(argc, argv);
}
