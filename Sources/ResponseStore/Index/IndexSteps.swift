#if DEBUG || INDEX_STEPS
  /// Called before each change of a word and at each step of a replacement, so that a test can end the process there.
  nonisolated(unsafe) var onIndexStep: (() -> Void)?
#endif

/// Marks a point where a test may end the process. Does nothing in a release build.
@inline(__always)
func reachedIndexStep() {
  #if DEBUG || INDEX_STEPS
    onIndexStep?()
  #endif
}
