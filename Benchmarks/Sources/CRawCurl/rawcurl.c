#define _GNU_SOURCE
#include "rawcurl.h"

#include <curl/curl.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

typedef struct {
  CURLM *multi;
  int epoll;
  /* When libcurl's timer expires, in milliseconds; -1 for never. A variable costs less than a kernel timer. */
  int64_t deadline;
  raw_curl_result result;
} raw_loop;

static int64_t milliseconds(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000LL + time.tv_nsec / 1000000;
}

static int note_socket(CURL *easy, curl_socket_t socket, int wanted, void *user, void *unused) {
  raw_loop *loop = user;
  struct epoll_event event = {.data.fd = socket};
  if (wanted & CURL_POLL_IN) event.events |= EPOLLIN;
  if (wanted & CURL_POLL_OUT) event.events |= EPOLLOUT;
  if (wanted == CURL_POLL_REMOVE) {
    epoll_ctl(loop->epoll, EPOLL_CTL_DEL, socket, NULL);
  } else if (epoll_ctl(loop->epoll, EPOLL_CTL_MOD, socket, &event) != 0 && errno == ENOENT) {
    epoll_ctl(loop->epoll, EPOLL_CTL_ADD, socket, &event);
  }
  return 0;
}

static int note_timer(CURLM *multi, long timeout, void *user) {
  ((raw_loop *)user)->deadline = timeout < 0 ? -1 : milliseconds() + timeout;
  return 0;
}

static size_t count_content(char *bytes, size_t size, size_t count, void *user) {
  ((raw_loop *)user)->result.byte_count += size * count;
  return size * count;
}

static void act(raw_loop *loop, int socket, int condition) {
  int running;
  curl_multi_socket_action(loop->multi, socket, condition, &running);
}

static void start(raw_loop *loop, CURL *easy, const char *base, long number) {
  char url[512];
  snprintf(url, sizeof url, "%s?i=%ld", base, number);
  curl_easy_setopt(easy, CURLOPT_URL, url);
  curl_multi_add_handle(loop->multi, easy);
}

raw_curl_result raw_curl_fetch(const char *base, int parallel, double seconds, const char *ca_file) {
  raw_loop loop = {.multi = curl_multi_init(), .epoll = epoll_create1(EPOLL_CLOEXEC), .deadline = -1};
  curl_multi_setopt(loop.multi, CURLMOPT_SOCKETFUNCTION, note_socket);
  curl_multi_setopt(loop.multi, CURLMOPT_SOCKETDATA, &loop);
  curl_multi_setopt(loop.multi, CURLMOPT_TIMERFUNCTION, note_timer);
  curl_multi_setopt(loop.multi, CURLMOPT_TIMERDATA, &loop);
  curl_multi_setopt(loop.multi, CURLMOPT_MAXCONNECTS, (long)parallel + 16);
  CURL **handles = calloc(parallel, sizeof *handles);
  long started = 0;
  int active = parallel;
  for (int index = 0; index < parallel; index++) {
    CURL *easy = handles[index] = curl_easy_init();
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, count_content);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, &loop);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_PROXY, "");
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    if (ca_file) curl_easy_setopt(easy, CURLOPT_CAINFO, ca_file);
    /* With a folder of certificates, libcurl would parse them again for every connection. */
    curl_easy_setopt(easy, CURLOPT_CAPATH, NULL);
    start(&loop, easy, base, started++);
  }
  int64_t end = milliseconds() + (int64_t)(seconds * 1000);
  while (active > 0) {
    struct epoll_event events[256];
    int64_t left = loop.deadline < 0 ? 1000 : loop.deadline - milliseconds();
    int count = epoll_wait(loop.epoll, events, 256, left < 0 ? 0 : left > 1000 ? 1000 : (int)left);
    for (int index = 0; index < count; index++) {
      uint32_t seen = events[index].events;
      int condition = (seen & EPOLLIN ? CURL_CSELECT_IN : 0) | (seen & EPOLLOUT ? CURL_CSELECT_OUT : 0)
        | (seen & (EPOLLERR | EPOLLHUP) ? CURL_CSELECT_ERR : 0);
      act(&loop, events[index].data.fd, condition);
    }
    int again;
    do {
      again = 0;
      if (loop.deadline >= 0 && milliseconds() >= loop.deadline) {
        loop.deadline = -1;
        act(&loop, CURL_SOCKET_TIMEOUT, 0);
      }
      CURLMsg *message;
      int queued;
      while ((message = curl_multi_info_read(loop.multi, &queued))) {
        if (message->msg != CURLMSG_DONE) continue;
        CURL *easy = message->easy_handle;
        if (message->data.result == CURLE_OK) loop.result.completed++;
        else loop.result.failed++;
        curl_multi_remove_handle(loop.multi, easy);
        again = 1;
        if (milliseconds() < end) start(&loop, easy, base, started++);
        else active--;
      }
    } while (again);
  }
  for (int index = 0; index < parallel; index++) curl_easy_cleanup(handles[index]);
  free(handles);
  curl_multi_cleanup(loop.multi);
  close(loop.epoll);
  return loop.result;
}
