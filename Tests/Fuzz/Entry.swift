import Glibc

/// The fuzz target named by the environment variable FUZZ_TARGET.
private let target: FuzzTarget = {
  let name = getenv("FUZZ_TARGET").map { String(cString: $0) } ?? ""
  guard let target = FuzzTarget.all.first(where: { $0.name == name }) else {
    fatalError("FUZZ_TARGET names none of \(FuzzTarget.all.map(\.name))")
  }
  return target
}()

/// Runs the target on one input; libFuzzer calls this.
@_cdecl("LLVMFuzzerTestOneInput")
public func fuzzOneInput(_ start: UnsafePointer<UInt8>?, _ count: Int) -> CInt {
  target.run(UnsafeRawBufferPointer(start: start, count: count))
  return 0
}
