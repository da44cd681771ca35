import Glibc

// Measures the index file without a store; see `Benchmarks/NOTES.md`.

let usage = """
  Usage: IndexBench lookups|index DIRECTORY COUNT
         IndexBench rows DIRECTORY DISK COUNT
         IndexBench writeback DIRECTORY DISK COUNT STORES-PER-SECOND HITS-PER-SECOND SECONDS

  DIRECTORY must be empty. DISK is the name in /sys/block of its disk, to which no other process writes.
  """
let arguments = Array(CommandLine.arguments.dropFirst())
func number(_ index: Int) -> Int { Int(arguments[index]) ?? 0 }
switch (arguments.first, arguments.count) {
case ("lookups", 3): try Lookups.run(directory: arguments[1], recordCount: number(2))
case ("index", 3): Changes.index(directory: arguments[1], recordCount: number(2))
case ("rows", 4): try Changes.rows(directory: arguments[1], disk: arguments[2], recordCount: number(3))
case ("writeback", 7):
  WriteBack(
    directory: arguments[1], disk: arguments[2], recordCount: number(3), storesPerSecond: number(4),
    hitsPerSecond: number(5)
  ).run(seconds: Double(number(6)))
default:
  print(usage)
  exit(2)
}
