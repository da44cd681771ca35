#define _GNU_SOURCE
#include "slow_names.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <string.h>

typedef int (*lookup)(const char *, const char *, const struct addrinfo *, struct addrinfo **);

_Static_assert(__builtin_types_compatible_p(__typeof__(&getaddrinfo), lookup), "");

static _Atomic(slow_names_hook) installed;
static _Atomic(slow_names_addresses) replacing;

void slow_names_install(slow_names_hook hook) { atomic_store(&installed, hook); }

void slow_names_install_addresses(slow_names_addresses hook) { atomic_store(&replacing, hook); }

static lookup real_lookup(void) {
  static _Atomic(lookup) real;
  lookup function = atomic_load(&real);
  if (!function) atomic_store(&real, function = (lookup)dlsym(RTLD_NEXT, "getaddrinfo"));
  return function;
}

/* Returns the addresses in the order of the list, which glibc would sort. Its freeaddrinfo frees each one by itself. */
static int list_addresses(
    char *list, const char *service, const struct addrinfo *hints, struct addrinfo **result) {
  struct addrinfo numeric = {.ai_flags = AI_NUMERICHOST, .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  struct addrinfo **end = result;
  int family = hints ? hints->ai_family : AF_UNSPEC, failure = EAI_NONAME;
  char *rest = list, *address;
  *result = 0;
  while ((address = strsep(&rest, ","))) {
    int code = real_lookup()(address, service, &numeric, end);
    if (code) {
      failure = code;
      *end = 0;
    } else if (family != AF_UNSPEC && (*end)->ai_family != family) {
      freeaddrinfo(*end);
      *end = 0;
    } else {
      while (*end) end = &(*end)->ai_next;
    }
  }
  return *result ? 0 : failure;
}

__attribute__((visibility("default"))) int getaddrinfo(
    const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **result) {
  slow_names_hook hook = atomic_load(&installed);
  if (hook && host) hook(host);
  slow_names_addresses addresses = atomic_load(&replacing);
  char list[1024];
  if (addresses && host && addresses(host, list, sizeof list)) return list_addresses(list, service, hints, result);
  return real_lookup()(host, service, hints, result);
}
