/*
 * Children that are killed at any instant, with sockets of their own and sockets that they have inherited,
 * again and again: what they had is there for others, and what others have goes on.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) ((what) ? (void)0 : fail(__LINE__, #what))
static void fail(int line, const char *what) {
	fprintf(stderr, "%d, line %d: %s: %s\n", getpid(), line, what, strerror(errno));
	_exit(1);
}

#include "ends.h"
#include "known.h"

static int rounds = 300;
static int listener;

/* A stream of numbers, of which none may be missing. */
static uint32_t sent, received;

static void send_some(int fd, int count) {
	for (int i = 0; i < count; i++, sent++) CHECK(send(fd, &sent, sizeof sent, 0) == sizeof sent);
}

static void receive_some(int fd, int count) {
	uint32_t number;
	for (int i = 0; i < count; i++, received++) {
		CHECK(recv(fd, &number, sizeof number, MSG_WAITALL) == sizeof number);
		CHECK(number == received);
	}
}

/* What a child does until it is killed: makes and closes what it can, and has children of its own. */
static void lives(int kind, int client, int forks) {
	int fds[40], last = -1, own = bound(SOCK_STREAM);
	alarm(60);
	CHECK(!listen(own, 8));
	if (kind % 4 == 0) {
		for (int i = 0; i < 40; i += 2) pair(own, &fds[i], &fds[i + 1]);
	}
	for (int i = 0;; i++) {
		int a, b;
		if (kind % 2) {
			mails(&a, &b);
		} else {
			pair(own, &a, &b);
			exchange(a, b, 2);
		}
		if (forks && !fork()) {
			if (i % 2) _exit(0);
			for (;;) pause();
		}
		if (last >= 0) CHECK(!close(last));
		CHECK(!close(a));
		CHECK((last = dup(b)) >= 0 && !close(b));
		if (i == 3 && kind % 4 == 1) CHECK(!close(client));
	}
}

static void end(pid_t child) {
	int status;
	CHECK(!kill(child, SIGKILL));
	CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

/* Grandchildren that are not waited for end with the group. */
static void end_group(pid_t child) {
	CHECK(!kill(-child, SIGKILL));
	CHECK(waitpid(child, NULL, 0) == child);
}

static void at_any_instant(int forks) {
	int client, server, mail, friend, after, first = known(), most = 0;
	pair(listener, &client, &server);
	mails(&mail, &friend);
	exchange(client, server, 4);
	int before = known();
	for (int i = 0; i < rounds; i++) {
		pid_t child = fork();
		CHECK(child >= 0);
		if (!child) {
			CHECK(!setpgid(0, 0));
			lives(i, client, forks && i % 4 == 3);
		}
		setpgid(child, child);
		send_some(client, i % 50);
		usleep(i * 37 % 3000);
		receive_some(server, i % 50);
		end_group(child);
		int now = known();
		if (now > most) most = now;
	}
	CHECK(rounds < 100 || most < 1000);
	/* The last look was some forks ago. */
	for (int i = 0; i < 200 && (after = known()) != before; i++) {
		pid_t child = fork();
		if (!child) _exit(0);
		CHECK(waitpid(child, NULL, 0) == child);
	}
	/* A child that is about to be forked when its parent is killed is unconfirmed for a while. */
	if (after > before + (forks ? 200 : 0)) {
		fprintf(stderr, "%d sockets before, %d after\n", before, after);
		CHECK(!"what the dead had is there");
	}
	exchange(client, server, 4);
	exchange(mail, friend, 4);
	CHECK(!close(client) && recv(server, &client, 1, 0) == 0);
	CHECK(!close(server) && !close(mail) && !close(friend));
	CHECK(known() <= (forks ? after : first));
}

/* A connection that a dead child had too ends when its parent closes it, with all that was sent. */
static void the_last_living_one_says_good_bye(int is_written) {
	for (int i = 0; i < 30; i++) {
		int client, server, is_read[2], before = known();
		char byte;
		pair(listener, &client, &server);
		exchange(client, server, 3);
		CHECK(!pipe(is_read));
		pid_t child = fork();
		CHECK(child >= 0);
		if (!child) {
			if (is_written) exchange(client, server, 3);
			CHECK(write(is_read[1], "x", 1) == 1);
			for (;;) pause();
		}
		CHECK(read(is_read[0], &byte, 1) == 1);
		CHECK(!close(is_read[0]) && !close(is_read[1]));
		if (i % 3 == 0) CHECK(!close(client)); /* The child has it alone. */
		if (i % 3 == 1) CHECK(send(client, "yz", 2, 0) == 2);
		end(child);
		if (i % 3 == 1) CHECK(recv(server, &byte, 1, 0) == 1 && byte == 'y');
		if (i % 3 != 0) CHECK(!close(client));
		if (i % 3 == 1) CHECK(recv(server, &byte, 1, 0) == 1 && byte == 'z');
		CHECK(recv(server, &byte, 1, 0) == 0);
		CHECK(!close(server));
		if (i % 3 != 0) CHECK(known() == before);
	}
}

/* A child that becomes another program has what it had no longer, and its parent's end is the last. */
static void another_program_has_nothing(const char *itself) {
	int before = known();
	pid_t running[60] = { 0 };
	for (int i = 0; i < 60; i++) {
		int client, server, is_there[2];
		char byte, number[16];
		pair(listener, &client, &server);
		exchange(client, server, 3);
		CHECK(!fcntl(client, F_SETFD, FD_CLOEXEC) && !fcntl(server, F_SETFD, FD_CLOEXEC));
		CHECK(!pipe(is_there));
		pid_t child = fork();
		CHECK(child >= 0);
		if (!child) {
			int own = bound(SOCK_STREAM);
			if (i % 2) CHECK(!fcntl(own, F_SETFD, FD_CLOEXEC));
			if (i % 3 == 0) CHECK(execl("/nowhere/at/all", "all", NULL) && errno == ENOENT);
			if (i % 3 == 0) exchange(client, server, 1);
			snprintf(number, sizeof number, "%d", is_there[1]);
			execl(itself, itself, "waits", number, NULL);
			_exit(1);
		}
		CHECK(read(is_there[0], &byte, 1) == 1);
		CHECK(!close(is_there[0]) && !close(is_there[1]));
		CHECK(!close(client) && recv(server, &byte, 1, 0) == 0);
		CHECK(!close(server));
		if (i % 2) end(child);
		else running[i] = child;
	}
	CHECK(known() < before + 40);
	for (int i = 0; i < 60; i += 2) end(running[i]);
}

/* Children in another namespace of processes, where numbers mean others: their numbers only their parent
 * knows, and they know nothing of it. */
static void in_another_namespace(void) {
	int client, server, status, before, is_done[2];
	char byte;
	CHECK(!pipe(is_done));
	pair(listener, &client, &server);
	exchange(client, server, 3);
	before = known();
	if (unshare(CLONE_NEWPID)) return; /* Without the right to that, there is nothing to test. */
	pid_t first = fork();
	CHECK(first >= 0);
	if (!first) {
		int a, b;
		for (int i = 0; i < 60; i++) {
			pid_t child = fork();
			CHECK(child >= 0);
			if (!child) {
				int own = bound(SOCK_STREAM);
				CHECK(!listen(own, 4));
				for (int k = 0; k < 10; k++) pair(own, &a, &b);
				exchange(client, server, 1);
				kill(getpid(), SIGKILL);
			}
			CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
		}
		exchange(client, server, 3);
		pair(listener, &a, &b);
		exchange(a, b, 2);
		CHECK(write(is_done[1], "x", 1) == 1);
		for (;;) pause();
	}
	CHECK(read(is_done[0], &byte, 1) == 1);
	send_some(client, 100);
	end(first);
	receive_some(server, 100);
	CHECK(!close(client) && recv(server, &byte, 1, 0) == 0);
	/* Those that the first one has not judged yet cannot be judged now. */
	CHECK(!close(server) && known() < before + 300);
}

/* How many files of rings there are. */
static int files(void) {
	int found = 0;
	DIR *place = opendir(getenv("ADVERB_SOCKETS_SHM_DIR"));
	for (struct dirent *entry; place && (entry = readdir(place));)
		found += strlen(entry->d_name) == 32 && strspn(entry->d_name, "0123456789abcdef") == 32;
	if (place) closedir(place);
	return found;
}

/* Rings are found for as long as a process at either end lives, also when the one that made them does not, and others start. */
static void rings_outlast_their_maker(const char *itself) {
	int is_made[2], status;
	pid_t child;
	char byte = 'x';
	CHECK(!pipe(is_made));
	pid_t maker = fork();
	CHECK(maker >= 0);
	if (!maker) {
		int client = socket(AF_INET, SOCK_STREAM, 0);
		alarm(60);
		joins(client, listener);
		for (int i = 0; i < 20; i++) CHECK(send(client, &byte, 1, 0) == 1 && recv(client, &byte, 1, 0) == 1);
		CHECK((child = fork()) >= 0);
		if (!child) {
			alarm(60);
			child = getpid();
			CHECK(write(is_made[1], &child, sizeof child) == sizeof child);
			while (recv(client, &byte, 1, 0) == 1) CHECK(send(client, &byte, 1, 0) == 1);
			_exit(0);
		}
		for (;;) pause();
	}
	int server = accept(listener, NULL, NULL);
	CHECK(server >= 0 && !fcntl(server, F_SETFD, FD_CLOEXEC) && !fcntl(listener, F_SETFD, FD_CLOEXEC));
	for (int i = 0; i < 20; i++) CHECK(recv(server, &byte, 1, 0) == 1 && send(server, &byte, 1, 0) == 1);
	CHECK(read(is_made[0], &child, sizeof child) == sizeof child);
	int made = files();
	CHECK(made == 1);
	end(maker);
	pid_t visitor = fork();
	CHECK(visitor >= 0);
	if (!visitor) {
		execl(itself, itself, "visits", NULL);
		_exit(1);
	}
	CHECK(waitpid(visitor, &status, 0) == visitor && !status);
	CHECK(files() == made);
	CHECK(send(server, &byte, 1, 0) == 1 && recv(server, &byte, 1, 0) == 1);
	CHECK(!close(server) && files() == 0);
}

int main(int count, char **arguments) {
	const char *what = arguments[1];
	if (!strcmp(what, "waits")) {
		CHECK(write(atoi(arguments[2]), "x", 1) == 1);
		alarm(20);
		for (;;) pause();
	}
	if (getenv("KILLED_ROUNDS")) rounds = atoi(getenv("KILLED_ROUNDS"));
	signal(SIGPIPE, SIG_IGN);
	listener = bound(SOCK_STREAM);
	CHECK(!listen(listener, 64));
	if (!strcmp(what, "instant")) at_any_instant(0);
	if (!strcmp(what, "families")) at_any_instant(1);
	if (!strcmp(what, "last")) the_last_living_one_says_good_bye(0);
	if (!strcmp(what, "written")) the_last_living_one_says_good_bye(1);
	if (!strcmp(what, "namespace")) in_another_namespace();
	if (!strcmp(what, "maker")) rings_outlast_their_maker(arguments[0]);
	if (!strcmp(what, "program")) another_program_has_nothing(arguments[0]);
	_exit(0);
}
