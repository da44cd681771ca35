#if DEBUG || INDEX_STEPS
  /// Called before each change of a word, and at each step of a growth, so that a test can end the process there.
  nonisolated(unsafe) var onIndexStep: (() -> Void)?
#endif

/// A point at which a test may end the process. Nothing in a release build.
@inline(__always)
func reachedIndexStep() {
  #if DEBUG || INDEX_STEPS
    onIndexStep?()
  #endif
}
