/* The C baseline for misses: a program with libcurl's multi interface on one thread, and nothing else. */
#ifndef RAWCURL_H
#define RAWCURL_H

#include <stdint.h>

typedef struct {
  long completed;
  long failed;
  int64_t byte_count;
} raw_curl_result;

/* Fetches `base`?i=0, `base`?i=1 and so on over persistent connections, `parallel` at a time, for `seconds`. Counts the
   bytes of the content. `ca_file` may be NULL. */
raw_curl_result raw_curl_fetch(const char *base, int parallel, double seconds, const char *ca_file);

#endif
