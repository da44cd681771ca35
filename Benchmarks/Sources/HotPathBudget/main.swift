// Repeats each hot call and prints its heap allocations per call. Under callgrind it also writes a file with the
// instruction count of each call. Neither count depends on the machine's load. `Scripts/bench guard` compares both with
// the committed thresholds.

import CAllocationCount
import Foundation

let folder = NSTemporaryDirectory() + "/guard-\(getpid())"
try FileManager.default.createDirectory(atPath: folder, withIntermediateDirectories: true)
let chosen = CommandLine.arguments.dropFirst()
// For a profiler: repeats a call without callgrind's own counters.
let isProfiled = ProcessInfo.processInfo.environment["GUARD_TIMES"] != nil
let times = ProcessInfo.processInfo.environment["GUARD_TIMES"].flatMap { Int($0) } ?? 1000
let redis = ProcessInfo.processInfo.environment["GUARD_REDIS"]
let calls =
  try storeCalls(folder + "/store") + cacheCalls(folder, redis: redis) + missCalls(folder + "/misses")
  + valueCalls(folder + "/values") + userCalls(folder + "/users") + [transferCall()]
for call in calls where chosen.isEmpty || chosen.contains(call.name) {
  // Warm up: one-time allocations are not counted.
  for number in 0..<20 { call.run(number) }
  let before = allocation_count()
  if !isProfiled { instructions_begin() }
  for number in 0..<times { call.run(number) }
  if !isProfiled { instructions_end(call.name) }
  print("\(call.name)\t\(Double(allocation_count() - before) / Double(times))")
}
if allocation_count() == 0 { fatalError("Allocations are not counted") }
try FileManager.default.removeItem(atPath: folder)
