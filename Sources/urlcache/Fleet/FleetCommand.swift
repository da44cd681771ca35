import Foundation
import RedisTier

/// `urlcache fleet`: shows the machines of a fleet.
enum FleetCommand: Command {
  static let manual = CommandHelp(
    name: "fleet", summary: "Shows the machines of a fleet.", usage: ["status URL [--name NAME] [--json]"],
    discussion: """
      Shows the state of the fleet whose Redis is at URL: its leases, the purges in its log, the purges that wait for
      machines, and for each registered machine:

        HOST     the name of the host
        MACHINE  its ID in the fleet, which changes when the host restarts
        LEASE    the time that is left of its lease, at most. After its end the machine validates everything it has
                 stored. The next purge waits for it once, for 1.25 leases and 0.25 s. Then it is no longer listed
        NUMBER   the last purge that it has applied
        LAG      the number of later purges

      \(FleetAccess.urlText)
      \(FleetAccess.passwordText)

      Nothing is changed. The user of the machines has all needed permissions.
      """,
    operandName: "'status' or the URL", operandCount: 2...2,
    options: FleetAccess.options + [
      Option(name: "json", help: "Prints a JSON object; times are in seconds.")
    ],
    success: "done, also if leases have ended",
    failure: "Redis cannot be reached, or knows no fleet of this name")

  static func run(_ arguments: Arguments) async throws -> ExitCode {
    guard arguments.operands[0] == "status" else {
      throw UsageError("'\(arguments.operands[0])' is not 'status'")
    }
    let console = try FleetAccess.console(arguments.operands[1], arguments)
    let status = try console.status()
    let name = arguments.value("name") ?? "default"
    try Output.write(
      arguments.has("json") ? json(status, console, name).pretty : text(status, console, name))
    return .success
  }

  static func text(_ status: FleetStatus, _ console: FleetConsole, _ name: String) -> String {
    var rows = [
      ["Fleet", Format.visible("\(name) at \(console.serverName)")],
      [
        "Epoch",
        Format.visible(status.epoch) + (status.isMature ? "" : ", young: purges wait for leases of the one before"),
      ],
      ["Leases", Format.seconds(status.leaseSeconds)],
      [
        "Purges",
        "\(Format.count(status.lastNumber)), the last "
          + "\(Format.count(status.lastNumber - min(status.floor, status.lastNumber))) in the log",
      ],
    ]
    if status.isLost {
      rows.append(["State", "Redis has restarted or lost data; the next renewal begins a new epoch"])
    }
    if let first = status.waiting.first {
      rows.append([
        "Waiting",
        "\(Format.count(status.waiting.count, "purge")); number \(Format.count(first.number)) for "
          + Format.count(first.machineCount, "machine"),
      ])
    }
    let head = Format.table(rows, rightAligned: [])
    guard !status.machines.isEmpty else { return head + "No machine is registered.\n" }
    var table = [["HOST", "MACHINE", "LEASE", "NUMBER", "LAG"]]
    for machine in status.machines {
      table.append([
        Format.visible(machine.host.isEmpty ? "-" : machine.host), Format.visible(machine.id),
        lease(status.leaseSecondsLeft(of: machine)), Format.count(machine.number),
        Format.count(status.lag(of: machine)),
      ])
    }
    return head + "\n" + Format.table(table, rightAligned: [2, 3, 4])
  }

  private static func lease(_ left: Double?) -> String {
    guard let left else { return "-" }
    return left > 0 ? Format.seconds(left) : "ended"
  }

  private static func json(_ status: FleetStatus, _ console: FleetConsole, _ name: String) -> JSON {
    [
      "fleet": .string(name),
      "server": .string(console.serverName),
      "epoch": .string(status.epoch),
      "isMature": .bool(status.isMature),
      "isLost": .bool(status.isLost),
      "leaseSeconds": .seconds(status.leaseSeconds),
      "lastNumber": .number(status.lastNumber),
      "firstKeptNumber": .number(Int(clamping: status.floor) + 1),
      "waiting": .array(
        status.waiting.map {
          ["number": .number($0.number), "machineCount": .number($0.machineCount)]
        }),
      "machines": .array(
        status.machines.map { machine in
          [
            "id": .string(machine.id), "host": .string(machine.host),
            "number": .number(machine.number),
            "lag": .number(status.lag(of: machine)),
            "secondsSinceRenewal": .seconds(machine.secondsSinceRenewal),
            "leaseSecondsLeft": .seconds(status.leaseSecondsLeft(of: machine).map { max($0, 0) }),
          ]
        }),
    ]
  }
}
