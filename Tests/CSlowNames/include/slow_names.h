/* Intercepts the name lookups of this process, including those of libcurl.

   The function of this target replaces the C library's `getaddrinfo` in the whole process. It is in C because
   Swift exports no symbols of an executable to the libraries that it links. */
#pragma once
#include <netdb.h>

typedef void (*slow_names_hook)(const char *host);

/* Installs a hook that is called on the looking-up thread before each lookup; a null hook removes it. */
void slow_names_install(slow_names_hook hook);

/* Writes the addresses of a host into the buffer, as digits with a comma between two; returns 0 for a host that the
   C library looks up. */
typedef int (*slow_names_addresses)(const char *host, char *buffer, size_t size);

/* Installs a hook that replaces lookups; a null hook removes it. */
void slow_names_install_addresses(slow_names_addresses hook);
