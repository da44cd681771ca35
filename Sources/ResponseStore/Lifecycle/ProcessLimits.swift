import Glibc
import LMDB
import SystemFiles

/// The limits of this process without which a store cannot work, and the errors when they are reached.
enum ProcessLimits {
  /// The number of files that opening a store has open at once, with a few to spare. An open store has seven.
  static let descriptorCount = 12
  /// The address space for threads and small files.
  private static let otherByteCount = 32 << 20

  // MARK: Before opening

  /// Throws if a limit of this process prevents a store from being opened, or from using its whole capacity.
  ///
  /// Checking first keeps a half-opened store from harming others: without a descriptor for a file of the directory,
  /// the file would look missing and be replaced. Costs some ten microseconds.
  /// - Parameters:
  ///   - mapByteCount: The size of the map.
  ///   - fileByteCount: The size of the largest file that the store will write; 0 if it writes none.
  static func check(directory: String, mapByteCount: Int, fileByteCount: Int) throws(StoreError) {
    try checkFileSize(directory: directory, of: "the disk capacity", byteCount: fileByteCount)
    let cause = errorOfDescriptors(in: directory) ?? errorOfAddressSpace(byteCount: mapByteCount + otherByteCount)
    if let cause, let error = error(cause.code, cause, directory: directory, doing: "Opening the data") { throw error }
  }

  /// Throws if this process may not write files of a size. Costs a system call.
  ///
  /// - Parameter what: What needs files of this size.
  static func checkFileSize(directory: String, of what: String, byteCount: Int) throws(StoreError) {
    guard let limit = maximumFileByteCount, limit < byteCount else { return }
    throw StoreError(
      .limitReached, directory: directory,
      reason: "this process may write files of at most \(limit) bytes, and \(what) needs \(byteCount)",
      remedy: fileSizeRemedy)
  }

  /// Opens and closes as many descriptors as a store needs; nil if that succeeds.
  private static func errorOfDescriptors(in directory: String) -> LMDBError? {
    var descriptors: [CInt] = []
    defer { for descriptor in descriptors { close(descriptor) } }
    for _ in 0..<descriptorCount {
      let descriptor = FileDescriptor.open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
      guard descriptor >= 0 else { return LMDBError(code: .init(rawValue: errno), function: "open") }
      descriptors.append(descriptor)
    }
    return nil
  }

  /// Maps and unmaps address space without memory behind it; nil if that succeeds.
  private static func errorOfAddressSpace(byteCount: Int) -> LMDBError? {
    let space = mmap(nil, byteCount, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
    guard let space, space != MAP_FAILED else { return LMDBError(code: .init(rawValue: errno), function: "mmap") }
    munmap(space, byteCount)
    return nil
  }

  // MARK: Errors

  /// Returns the error for an error number that shows that a limit was reached; nil for any other number.
  static func error(
    _ code: LMDBError.Code, _ cause: LMDBError? = nil, directory: String, doing what: String
  ) -> StoreError? {
    guard let (reason, remedy) = reasonAndRemedy(code) else { return nil }
    return StoreError(
      .limitReached, directory: directory, reason: "\(what) failed because \(reason)", remedy: remedy, cause: cause)
  }

  private static func reasonAndRemedy(_ code: LMDBError.Code) -> (reason: String, remedy: String)? {
    switch code.rawValue {
    case EMFILE:
      (
        "this process has too many open files",
        "Close files, or raise the process's limit on open files (ulimit -n, or LimitNOFILE of a systemd unit)"
      )
    case ENFILE:
      (
        "the system has too many open files",
        "End programs with many open files, or raise the system's limit fs.file-max"
      )
    case EFBIG where maximumFileByteCount != nil:
      ("a file would exceed this process's limit on file sizes", fileSizeRemedy)
    case ENOMEM:
      (
        "this process has no address space or memory left",
        "Raise its limits on memory (ulimit -v, or LimitAS of a systemd unit), or choose a lower disk capacity"
      )
    default: nil
    }
  }

  /// The remedy for a limit on file sizes that is too low.
  static let fileSizeRemedy =
    "Raise the process's limit on file sizes (ulimit -f, or LimitFSIZE of a systemd unit), or choose a lower disk capacity"

  // MARK: File sizes

  /// The maximum size of a file that this process may write; nil without a limit. Costs a system call.
  static var maximumFileByteCount: Int? {
    var limit = rlimit()
    guard getrlimit(__rlimit_resource_t(RLIMIT_FSIZE.rawValue), &limit) == 0, limit.rlim_cur < rlim_t(Int.max) else {
      return nil
    }
    return Int(limit.rlim_cur)
  }

  /// Returns the error of a failed write to a file, with the limit on file sizes as its code if that was the reason.
  ///
  /// A write is cut at the limit, which liblmdb reports as an I/O error.
  static func cause(of error: LMDBError, writing path: String) -> LMDBError {
    guard error.code == .inputOutput, let limit = maximumFileByteCount else { return error }
    var status = stat()
    guard stat(path, &status) == 0, status.st_size >= limit else { return error }
    return LMDBError(code: .fileTooLarge, function: error.function)
  }
}
