// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/grpc/tls.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/clock.h"
#include "moebius/base/mutex.h"
#include "moebius/transport/grpc/grpc_log.h"
#include "moebius/transport/grpc/grpc_provider.h"
#include "tests/support/metric_values.h"
#include "tests/transport/link_user.h"

namespace moebius {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr Lane kLane = Lane::kControl;

// A folder with an authority, which signs certificates for as long as the test runs.
class Authority {
 public:
  Authority() {
    std::string pattern = (fs::temp_directory_path() / "moebius-tls-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    MakeAuthority("ca");
  }
  ~Authority() { fs::remove_all(folder_); }

  void MakeAuthority(const std::string& name) {
    Run(absl::StrCat("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 ",
                     "-subj /CN=", name, " -keyout ", File(name + ".key"), " -out ",
                     File(name + ".crt")));
  }
  // NAME.crt and NAME.key; `days` 0 makes one that has expired.
  TlsOptions Sign(const std::string& name, const std::string& names, int days = 1,
                  const std::string& ca = "ca") {
    Run(absl::StrCat("req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=", name,
                     " -keyout ", File(name + ".key"), " -out ", File(name + ".csr")));
    std::ofstream(File(name + ".ext")) << "subjectAltName=" << names << "\n";
    Run(absl::StrCat("x509 -req -in ", File(name + ".csr"), " -CA ", File(ca + ".crt"), " -CAkey ",
                     File(ca + ".key"), " -CAcreateserial -days ", days, " -extfile ",
                     File(name + ".ext"), " -out ", File(name + ".crt")));
    TlsOptions options;
    options.ca_file = File("ca.crt");
    options.cert_file = File(name + ".crt");
    options.key_file = File(name + ".key");
    options.refresh_interval = absl::ZeroDuration();
    return options;
  }
  std::string File(const std::string& name) const { return (folder_ / name).string(); }

 private:
  static void Run(const std::string& arguments) {
    ASSERT_EQ(std::system(absl::StrCat("openssl ", arguments, " >/dev/null 2>&1").c_str()), 0)
        << arguments;
  }
  fs::path folder_;
};

std::unique_ptr<GrpcLinkProvider> MakeProvider(const TlsOptions& tls) {
  auto provider = GrpcLinkProvider::Make({}, tls);
  EXPECT_TRUE(provider.ok()) << provider.status();
  return *std::move(provider);
}

// Whether a frame crosses from one to the other.
absl::Status TryLink(LinkProvider& from, const Address& to, Host& host) {
  const size_t before = host.TotalFrames();
  LinkUser guest(*from.Dial(to, kLane));
  guest.Write(NumberedFrame(0, 10));
  Until([&] { return guest.closed() || host.TotalFrames() > before; });
  if (host.TotalFrames() > before) return absl::OkStatus();
  return guest.closed() ? guest.reason() : absl::DeadlineExceededError("neither in nor out");
}

TEST(TlsTest, AStarInANameStandsForAnyText) {
  EXPECT_TRUE(MatchesPeerName("spiffe://m/expert/*", "spiffe://m/expert/7"));
  EXPECT_TRUE(MatchesPeerName("*.experts.local", "a.experts.local"));
  EXPECT_TRUE(MatchesPeerName("exact", "exact"));
  EXPECT_FALSE(MatchesPeerName("spiffe://m/expert/*", "spiffe://m/router/7"));
  EXPECT_FALSE(MatchesPeerName("exact", "exactly"));
  EXPECT_FALSE(MatchesPeerName("ab*ba", "aba"));
}

TEST(TlsTest, BothEndsProveWhoTheyAre) {
  Authority authority;
  auto host_provider =
      MakeProvider(authority.Sign("host", "IP:127.0.0.1,URI:spiffe://moebius/expert/2"));
  auto guest_provider = MakeProvider(authority.Sign("guest", "URI:spiffe://moebius/router/0"));
  EXPECT_EQ(host_provider->exposure(), "mutual TLS");
  Host host;
  auto listener = host_provider->Listen({"127.0.0.1", 0}, host);
  ASSERT_TRUE(listener.ok()) << listener.status();
  LinkUser guest(*guest_provider->Dial((*listener)->address(), kLane));
  guest.Write(NumberedFrame(0, 300000));
  ASSERT_TRUE(Until([&] { return host.TotalFrames() == 1; })) << guest.reason();
  EXPECT_EQ(Difference(host.link(0).frame(0), 0, 300000), "");
  EXPECT_EQ(host.link(0).facts().identity, "spiffe://moebius/router/0");
  host.link(0).Write(NumberedFrame(1, 10));
  ASSERT_TRUE(Until([&] { return guest.num_frames() == 1; }));
  EXPECT_EQ(guest.facts().identity, "spiffe://moebius/expert/2");
  EXPECT_TRUE(host_provider->figures().tls_expires.has_value());
}

TEST(TlsTest, RefusesPeersWithoutCertificateOfAnotherAuthorityOrName) {
  Authority authority;
  authority.MakeAuthority("other");
  TlsOptions host_options = authority.Sign("host", "IP:127.0.0.1,URI:spiffe://moebius/expert/2");
  host_options.allowed_peers = {"spiffe://moebius/router/*"};
  auto host_provider = MakeProvider(host_options);
  Host host;
  auto listener = host_provider->Listen({"127.0.0.1", 0}, host);
  ASSERT_TRUE(listener.ok());
  const Address address = (*listener)->address();

  auto right = MakeProvider(authority.Sign("right", "URI:spiffe://moebius/router/1"));
  EXPECT_TRUE(TryLink(*right, address, host).ok());
  auto wrong_name = MakeProvider(authority.Sign("wrong", "URI:spiffe://moebius/client/1"));
  EXPECT_FALSE(TryLink(*wrong_name, address, host).ok());
  TlsOptions stranger_options =
      authority.Sign("stranger", "URI:spiffe://moebius/router/1", 1, "other");
  auto stranger = MakeProvider(stranger_options);
  EXPECT_FALSE(TryLink(*stranger, address, host).ok());
  auto naked = GrpcLinkProvider::Make({}, std::nullopt);
  EXPECT_FALSE(TryLink(**naked, address, host).ok());
  // And the other way round: a guest that expects somebody else.
  TlsOptions picky_options = authority.Sign("picky", "URI:spiffe://moebius/router/2");
  picky_options.allowed_peers = {"spiffe://moebius/expert/3"};
  auto picky = MakeProvider(picky_options);
  EXPECT_FALSE(TryLink(*picky, address, host).ok());
  EXPECT_EQ(host.num_links(), 1u);
}

// They never say who they are, so nobody above the link can count them.
TEST(TlsTest, CountsAndTellsOfConnectionsWhoseHandshakeFailed) {
  Authority authority;
  authority.MakeAuthority("other");
  std::atomic<uint64_t> told{0};
  GrpcOptions options;
  options.on_refusal = [&told](const LogSource& source, const std::string& sentence) {
    EXPECT_EQ(source.peer, "127.0.0.1");
    EXPECT_EQ(source.kind, "handshake");
    EXPECT_THAT(sentence, HasSubstr("a connection of 127.0.0.1 to the data port ended"));
    ++told;
  };
  auto host_provider = *GrpcLinkProvider::Make(options, authority.Sign("host", "IP:127.0.0.1"));
  Host host;
  auto listener = host_provider->Listen({"127.0.0.1", 0}, host);
  ASSERT_TRUE(listener.ok());
  const Address address = (*listener)->address();
  const auto is_counted_more_than = [&](uint64_t before) {
    return Until([&] {
      const uint64_t unused = host_provider->figures().connections.unused;
      return unused > before && told >= unused;
    });
  };
  const auto num_unused = [&] { return host_provider->figures().connections.unused; };

  auto right = MakeProvider(authority.Sign("right", "IP:127.0.0.1"));
  EXPECT_TRUE(TryLink(*right, address, host).ok());
  host.Clear();
  EXPECT_TRUE(Until([&] { return host_provider->figures().connections.open == 0; }));
  EXPECT_EQ(num_unused(), 0u);
  auto stranger = MakeProvider(authority.Sign("stranger", "IP:127.0.0.1", 1, "other"));
  EXPECT_FALSE(TryLink(*stranger, address, host).ok());
  EXPECT_TRUE(is_counted_more_than(0));
  const uint64_t before = num_unused();
  auto naked = GrpcLinkProvider::Make({}, std::nullopt);
  EXPECT_FALSE(TryLink(**naked, address, host).ok());
  EXPECT_TRUE(is_counted_more_than(before));
  Registry registry;
  const auto handle =
      registry.AddCollector([&](MetricWriter& writer) { host_provider->WriteMetrics(writer); });
  EXPECT_GE(ValueOf(registry.Scrape(),
                    "moebius_transport_errors_total{transport=\"grpc\",reason=\"handshake\"}"),
            2);
}

TEST(TlsTest, ADialedHostMustHaveTheDialedName) {
  Authority authority;
  auto host_provider = MakeProvider(authority.Sign("host", "DNS:somebody.else"));
  auto guest_provider = MakeProvider(authority.Sign("guest", "DNS:guest"));
  Host host;
  auto listener = host_provider->Listen({"127.0.0.1", 0}, host);
  EXPECT_FALSE(TryLink(*guest_provider, (*listener)->address(), host).ok());
}

TEST(TlsTest, RefusesFilesThatCannotServeAndNamesThem) {
  Authority authority;
  const TlsOptions good = authority.Sign("good", "DNS:good");
  ASSERT_TRUE(LoadTlsMaterial(good).ok());
  EXPECT_GT(LoadTlsMaterial(good)->expires, absl::Now() + absl::Hours(23));
  const TlsOptions other = authority.Sign("other", "DNS:other");

  TlsOptions options = good;
  options.key_file = other.key_file;
  EXPECT_THAT(std::string(LoadTlsMaterial(options).status().message()),
              HasSubstr("other.key: it is not the key of"));
  options = good;
  options.ca_file = authority.File("absent.crt");
  EXPECT_EQ(LoadTlsMaterial(options).status().code(), absl::StatusCode::kNotFound);
  options = good;
  options.cert_file = good.key_file;
  EXPECT_THAT(std::string(LoadTlsMaterial(options).status().message()),
              HasSubstr("good.key: no certificate"));
  const TlsOptions expired = authority.Sign("old", "DNS:old", 0);
  EXPECT_THAT(std::string(LoadTlsMaterial(expired).status().message()),
              HasSubstr("old.crt: the certificate has expired"));
  EXPECT_FALSE(GrpcLinkProvider::Make({}, expired).ok());
}

// One file of the pair has been replaced, the other is about to be.
TEST(TlsTest, AStartInTheMiddleOfARotationWaitsForItsEnd) {
  Authority authority;
  const TlsOptions options = authority.Sign("host", "DNS:host");
  const TlsOptions next = authority.Sign("next", "DNS:host");
  fs::copy_file(next.cert_file, options.cert_file, fs::copy_options::overwrite_existing);
  ASSERT_EQ(LoadTlsMaterial(options).status().code(), absl::StatusCode::kInvalidArgument);
  std::thread rotation([&] {
    absl::SleepFor(absl::Milliseconds(120));
    fs::rename(next.key_file, options.key_file);
  });
  FakeClock clock;
  const auto files = TlsFiles::Open(options, clock);
  rotation.join();
  EXPECT_TRUE(files.ok()) << files.status();
}

TEST(TlsTest, GarbageInTheFilesLeavesTheCurrentMaterial) {
  Authority authority;
  const TlsOptions options = authority.Sign("host", "DNS:host");
  FakeClock clock;
  auto files = TlsFiles::Open(options, clock);
  ASSERT_TRUE(files.ok());
  const auto before = (*files)->Current();
  std::ofstream(options.cert_file) << "garbage";
  EXPECT_EQ((*files)->Current(), before);
  EXPECT_EQ((*files)->failed_reloads(), 1u);
  EXPECT_THAT(std::string((*files)->last_failure().message()), HasSubstr("host.crt"));
  authority.Sign("host", "DNS:host");
  const auto after = (*files)->Current();
  EXPECT_EQ(after->version, 2u);
  EXPECT_NE(after->cert, before->cert);
  EXPECT_TRUE((*files)->last_failure().ok());
}

TEST(TlsTest, NewLinksUseARotatedCertificateAndOldLinksGoOn) {
  Authority authority;
  auto host_provider = MakeProvider(authority.Sign("host", "IP:127.0.0.1,URI:spiffe://m/host/0"));
  auto guest_provider = MakeProvider(authority.Sign("guest", "DNS:guest"));
  Host host;
  auto listener = host_provider->Listen({"127.0.0.1", 0}, host);
  ASSERT_TRUE(listener.ok());
  LinkUser old(*guest_provider->Dial((*listener)->address(), kLane));
  old.Write(NumberedFrame(0, 1000));
  ASSERT_TRUE(Until([&] { return host.TotalFrames() == 1; })) << old.reason();
  uint64_t frames = 1;
  for (int round = 1; round <= 10; ++round) {
    // A certificate of another authority: only new trust and new identity work together.
    if (round == 5) authority.MakeAuthority("ca");
    authority.Sign("host", absl::StrCat("IP:127.0.0.1,URI:spiffe://m/host/", round));
    authority.Sign("guest", "DNS:guest");
    LinkUser guest(*guest_provider->Dial((*listener)->address(), kLane));
    guest.Write(NumberedFrame(round, 1000));
    old.Write(NumberedFrame(round, 1000));
    frames += 2;
    ASSERT_TRUE(Until([&] { return host.TotalFrames() == frames; })) << guest.reason();
    host.link(host.num_links() - 1).Write(NumberedFrame(0, 0));
    ASSERT_TRUE(Until([&] { return guest.num_frames() == 1; }));
    EXPECT_EQ(guest.facts().identity, absl::StrCat("spiffe://m/host/", round));
  }
  EXPECT_FALSE(old.closed());
  EXPECT_EQ(host_provider->figures().tls_failed_reloads, 0u);
  EXPECT_GE(host_provider->figures().tls_reloads, 10u);
}

TEST(TlsTest, AnExpiredCertificateIsRefusedByTheOtherEnd) {
  Authority authority;
  auto host_provider = MakeProvider(authority.Sign("host", "IP:127.0.0.1"));
  Host host;
  auto listener = host_provider->Listen({"127.0.0.1", 0}, host);
  const auto alert_for = [&](const TlsOptions& shown) {
    std::vector<std::string> lines;
    Mutex mutex;
    InstallGrpcLog([&](const std::string& line) {
      MutexLock lock(mutex);
      lines.push_back(line);
    });
    // A peer without our checks of its own files.
    const std::string command = absl::StrCat(
        "sleep 1 | timeout 5 openssl s_client -connect 127.0.0.1:", (*listener)->address().port,
        " -alpn h2 -CAfile ", shown.ca_file, " -cert ", shown.cert_file, " -key ", shown.key_file,
        " >/dev/null 2>&1");
    [[maybe_unused]] const int code = std::system(command.c_str());
    InstallGrpcLog(nullptr);
    MutexLock lock(mutex);
    return absl::StrJoin(lines, "\n");
  };
  const std::string refusal = alert_for(authority.Sign("old", "DNS:old", 0));
  // gRPC's line where its budget of the minute is not used up.
  if (GrpcLogLinesHeldBack() == 0) EXPECT_THAT(refusal, HasSubstr("certificate verify failed"));
  EXPECT_EQ(host.num_links(), 0u);
}

}  // namespace
}  // namespace moebius
