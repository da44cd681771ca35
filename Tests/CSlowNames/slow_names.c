#define _GNU_SOURCE
#include "slow_names.h"

#include <dlfcn.h>
#include <stdatomic.h>

typedef int (*lookup)(const char *, const char *, const struct addrinfo *, struct addrinfo **);

static _Atomic(slow_names_hook) installed;

void slow_names_install(slow_names_hook hook) { atomic_store(&installed, hook); }

__attribute__((visibility("default"))) int getaddrinfo(
    const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **result) {
  static _Atomic(lookup) real;
  lookup function = atomic_load(&real);
  if (!function) atomic_store(&real, function = (lookup)dlsym(RTLD_NEXT, "getaddrinfo"));
  slow_names_hook hook = atomic_load(&installed);
  if (hook && host) hook(host);
  return function(host, service, hints, result);
}
