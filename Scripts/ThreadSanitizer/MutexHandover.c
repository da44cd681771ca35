// Tells ThreadSanitizer how threads hand over a contended Mutex of Swift's Synchronization module. Only
// `Scripts/test --sanitize` and `Scripts/reliability --sanitize` link it.
//
// On Linux, uncontended locking and unlocking are inlined into the instrumented code, so ThreadSanitizer sees them.
// Contended ones are calls into a library without instrumentation, where the kernel writes the lock word (a
// priority-inheriting futex). ThreadSanitizer then sees no order between the unlocking and the waiting thread, and
// reports a race on all data that the mutex guards.
//
// The functions below wrap those of the library, and report the lock word, at the start of the handle, as the address
// that orders the two threads. Nothing is suppressed: an access outside the lock is still reported.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

extern void __tsan_acquire(void *address);
extern void __tsan_release(void *address);

#define SWIFT __attribute__((swiftcall))
#define SELF __attribute__((swift_context))

// _MutexHandle._lockSlow(UInt32), _tryLockSlow() -> Bool, _unlockSlow()
#define LOCK "$s15Synchronization12_MutexHandleV9_lockSlowyys6UInt32VF"
#define TRY_LOCK "$s15Synchronization12_MutexHandleV12_tryLockSlowSbyF"
#define UNLOCK "$s15Synchronization12_MutexHandleV11_unlockSlowyyF"

static void *library_function(const char *name) {
  void *function = dlsym(RTLD_NEXT, name);
  // Another version of the library has other names. Abort rather than report false races.
  if (function == NULL) abort();
  return function;
}

SWIFT void lock_slow(uint32_t thread, SELF void *handle) __asm__(LOCK);
SWIFT void lock_slow(uint32_t thread, SELF void *handle) {
  SWIFT void (*lock)(uint32_t, SELF void *) = library_function(LOCK);
  lock(thread, handle);
  __tsan_acquire(handle);
}

SWIFT bool try_lock_slow(SELF void *handle) __asm__(TRY_LOCK);
SWIFT bool try_lock_slow(SELF void *handle) {
  SWIFT bool (*try_lock)(SELF void *) = library_function(TRY_LOCK);
  bool is_locked = try_lock(handle);
  if (is_locked) __tsan_acquire(handle);
  return is_locked;
}

SWIFT void unlock_slow(SELF void *handle) __asm__(UNLOCK);
SWIFT void unlock_slow(SELF void *handle) {
  SWIFT void (*unlock)(SELF void *) = library_function(UNLOCK);
  __tsan_release(handle);
  unlock(handle);
}
