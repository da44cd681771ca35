#ifndef CCURL_SHIM_H
#define CCURL_SHIM_H

/* Swift does not import variadic functions. curl's type checks would hide them behind macros. */
#define CURL_DISABLE_TYPECHECK
#include <curl/curl.h>

/* Swift's Glibc module lacks both. */
#include <sys/epoll.h>
#include <sys/eventfd.h>

/* The oldest version that was tested, as a number. */
#define CCURL_MINIMUM_VERSION 0x075801 /* 7.88.1 */
#if LIBCURL_VERSION_NUM < CCURL_MINIMUM_VERSION
#error "libcurl is too old; see CCURL_MINIMUM_VERSION"
#endif

/* Swift passes an Int as a long and as a curl_off_t, and an Int32 as a socket. */
_Static_assert(sizeof(long) == 8 && sizeof(curl_off_t) == 8, "");
_Static_assert(_Generic((curl_socket_t)0, int: 1, default: 0), "");

/* curl_easy_setopt, one function per argument type. */

static inline CURLcode ccurl_set_long(CURL *easy, CURLoption option, long value) {
  return curl_easy_setopt(easy, option, value);
}

static inline CURLcode ccurl_set_offset(CURL *easy, CURLoption option, curl_off_t value) {
  return curl_easy_setopt(easy, option, value);
}

/* libcurl copies the string; NULL unsets the option. */
static inline CURLcode ccurl_set_string(CURL *easy, CURLoption option, const char *value) {
  return curl_easy_setopt(easy, option, value);
}

static inline CURLcode ccurl_set_pointer(CURL *easy, CURLoption option, void *value) {
  return curl_easy_setopt(easy, option, value);
}

static inline CURLcode ccurl_set_url(CURL *easy, CURLU *url) { return curl_easy_setopt(easy, CURLOPT_CURLU, url); }

static inline CURLcode ccurl_set_fields(CURL *easy, struct curl_slist *fields) {
  return curl_easy_setopt(easy, CURLOPT_HTTPHEADER, fields);
}

/* For CURLOPT_HEADERFUNCTION and CURLOPT_WRITEFUNCTION. */
static inline CURLcode ccurl_set_receiver(CURL *easy, CURLoption option, curl_write_callback callback) {
  return curl_easy_setopt(easy, option, callback);
}

static inline CURLcode ccurl_set_socket_opener(CURL *easy, curl_opensocket_callback callback) {
  return curl_easy_setopt(easy, CURLOPT_OPENSOCKETFUNCTION, callback);
}

static inline CURLcode ccurl_set_socket_closer(CURL *easy, curl_closesocket_callback callback) {
  return curl_easy_setopt(easy, CURLOPT_CLOSESOCKETFUNCTION, callback);
}

static inline CURLcode ccurl_set_request_guard(CURL *easy, curl_prereq_callback callback) {
  return curl_easy_setopt(easy, CURLOPT_PREREQFUNCTION, callback);
}

static inline CURLcode ccurl_set_tls_preparer(CURL *easy, curl_ssl_ctx_callback callback) {
  return curl_easy_setopt(easy, CURLOPT_SSL_CTX_FUNCTION, callback);
}

static inline CURLcode ccurl_set_note_receiver(CURL *easy, curl_debug_callback callback) {
  return curl_easy_setopt(easy, CURLOPT_DEBUGFUNCTION, callback);
}

static inline CURLcode ccurl_set_progress_receiver(CURL *easy, curl_xferinfo_callback callback) {
  return curl_easy_setopt(easy, CURLOPT_XFERINFOFUNCTION, callback);
}

/* curl_easy_getinfo, one function per result type. */

static inline CURLcode ccurl_get_long(CURL *easy, CURLINFO info, long *value) {
  return curl_easy_getinfo(easy, info, value);
}

static inline CURLcode ccurl_get_pointer(CURL *easy, CURLINFO info, void **value) {
  return curl_easy_getinfo(easy, info, value);
}

/* Returns the TLS library's object of the transfer's connection; NULL if the connection has no TLS. */
static inline void *ccurl_get_tls(CURL *easy, curl_sslbackend *backend) {
  struct curl_tlssessioninfo *info = 0;
  if (curl_easy_getinfo(easy, CURLINFO_TLS_SSL_PTR, &info) != CURLE_OK || !info) {
    *backend = CURLSSLBACKEND_NONE;
    return 0;
  }
  *backend = info->backend;
  return info->internals;
}

/* curl_multi_setopt and curl_share_setopt. */

static inline CURLMcode ccurl_multi_set_long(CURLM *multi, CURLMoption option, long value) {
  return curl_multi_setopt(multi, option, value);
}

static inline CURLMcode ccurl_multi_set_pointer(CURLM *multi, CURLMoption option, void *value) {
  return curl_multi_setopt(multi, option, value);
}

static inline CURLMcode ccurl_multi_set_socket_callback(CURLM *multi, curl_socket_callback callback) {
  return curl_multi_setopt(multi, CURLMOPT_SOCKETFUNCTION, callback);
}

static inline CURLMcode ccurl_multi_set_timer_callback(CURLM *multi, curl_multi_timer_callback callback) {
  return curl_multi_setopt(multi, CURLMOPT_TIMERFUNCTION, callback);
}

static inline CURLSHcode ccurl_share(CURLSH *share, curl_lock_data data) {
  return curl_share_setopt(share, CURLSHOPT_SHARE, data);
}

/* Examines all transfers. Deprecated, but the only way to make some versions try the next address of a host at once. */
static inline CURLMcode ccurl_act_on_all(CURLM *multi, int *running) {
  CURL_IGNORE_DEPRECATION(return curl_multi_socket_all(multi, running);)
}

/* Returns the next finished transfer and its result; NULL if there is none. CURLMsg contains a union, and is freed with
   its transfer. */
static inline CURL *ccurl_next_finished(CURLM *multi, CURLcode *result) {
  int left;
  CURLMsg *message;
  while ((message = curl_multi_info_read(multi, &left))) {
    if (message->msg != CURLMSG_DONE) continue;
    *result = message->data.result;
    return message->easy_handle;
  }
  return 0;
}

/* Macros that Swift cannot import. */
static inline curl_socket_t ccurl_timeout_socket(void) { return CURL_SOCKET_TIMEOUT; }
static inline size_t ccurl_pause_writing(void) { return CURL_WRITEFUNC_PAUSE; }
static inline unsigned ccurl_minimum_version(void) { return CCURL_MINIMUM_VERSION; }

#endif
