//! Projects, with their sources, builds and tests.

/// Debian source package with its own tests.
pub struct Project {
    /// Name of the source package.
    pub name: &'static str,
    /// Shell script, appended to [`PRELUDE`], that builds the project in its unpacked source directory.
    pub build: &'static str,
    /// Working directory of the tests.
    pub directory: &'static str,
    /// Shell script that prints the tests, one command per line.
    pub tests: &'static str,
}

/// Common beginning of the build scripts. Environment variables name the compilers and their flags; `LDFLAGS` includes
/// the planted leak. Libraries are static, because otherwise the test programs would be libtool scripts.
pub const PRELUDE: &str = r#"set -e
use_cmake() {
    cmake -S . -B build -DCMAKE_BUILD_TYPE=None -DBUILD_SHARED_LIBS=OFF "$@"
    cmake --build build -j1
}
use_configure() {
    ./configure --disable-shared "$@"
    make -j1
}
flags() { # for makefiles that read no environment
    make -j1 CC="$CC" CXX="$CXX" CFLAGS="$CFLAGS $*" CXXFLAGS="$CXXFLAGS $*" LDFLAGS="$LDFLAGS"
}
"#;

/// Libraries and programs in C and C++ whose tests take seconds.
pub const PROJECTS: &[Project] = &[
    Project {
        name: "bzip2",
        build: r#"make -j1 CC="$CC" CFLAGS="$CFLAGS -D_FILE_OFFSET_BITS=64 $LDFLAGS" bzip2"#,
        directory: ".",
        tests: r#"for level in 1 2 3; do echo "./bzip2 -k -c -$level sample$level.ref"; done
            for n in 1 2 3; do echo "./bzip2 -k -c -d sample$n.bz2"; done"#,
    },
    Project {
        name: "cjson",
        build: "use_cmake -DENABLE_CJSON_UTILS=ON -DENABLE_CUSTOM_COMPILER_FLAGS=OFF",
        directory: "build/tests",
        tests: r#"for test in *_tests parse_* print_* cjson_add readme_examples; do
            [ -f $test ] && [ -x $test ] && echo ./$test; done"#,
    },
    Project {
        name: "double-conversion",
        build: "use_cmake -DBUILD_TESTING=ON",
        directory: "build/test/cctest",
        tests: "echo ./cctest",
    },
    Project {
        name: "expat",
        build: r#"cd expat
            use_cmake -DEXPAT_BUILD_EXAMPLES=ON -DEXPAT_BUILD_DOCS=OFF -DEXPAT_SHARED_LIBS=OFF"#,
        directory: "expat",
        tests: r#"echo build/tests/runtests
            echo build/tests/runtestspp
            echo build/xmlwf/xmlwf -r doc/reference.html
            echo build/xmlwf/xmlwf ../testdata/largefiles/nes96.xml"#,
    },
    Project {
        name: "fmtlib",
        build: "use_cmake -DFMT_DOC=OFF -DFMT_TEST=ON",
        directory: "build",
        tests: "for test in bin/*-test; do echo $test; done",
    },
    Project {
        name: "jansson",
        build: "use_cmake -DJANSSON_BUILD_DOCS=OFF -DJANSSON_EXAMPLES=OFF",
        directory: "build",
        tests: r#"for test in bin/test_*; do echo $test; done
            for case in ../test/suites/valid/*; do echo bin/json_process --strip $case; done | head -4"#,
    },
    Project {
        name: "libarchive",
        build: r#"use_configure --without-xml2 --without-expat --without-openssl --without-nettle
            make -j1 libarchive_test"#,
        directory: ".",
        tests: r#"echo ./libarchive_test -q -r libarchive/test test_read_format_tar test_write_format_zip
            echo ./libarchive_test -q -r libarchive/test test_acl_pax_posix1e test_entry test_archive_match_owner
            echo ./libarchive_test -q -r libarchive/test test_read_format_7zip_lzma2 test_read_format_cab"#,
    },
    Project {
        name: "libconfig",
        build: "use_configure",
        directory: "tests",
        tests: "echo ./libconfig_tests",
    },
    Project {
        name: "libjsoncpp",
        build: "use_cmake -DJSONCPP_WITH_POST_BUILD_UNITTEST=OFF -DBUILD_OBJECT_LIBS=OFF",
        directory: "build",
        tests: r#"echo bin/jsoncpp_test
            for file in object_03 complex_01 large_01 comment_02; do
                echo bin/jsontestrunner_exe ../test/data/legacy_test_$file.json; done
            echo bin/jsontestrunner_exe --json-checker ../test/jsonchecker/pass1.json"#,
    },
    Project {
        name: "libpng1.6",
        build: r#"use_configure
            make -j1 pngtest pngunknown pngstest pngvalid pngimage"#,
        directory: ".",
        tests: r#"echo ./pngtest --strict pngtest.png
            echo ./pngvalid --standard
            echo ./pngstest --tmpfile x- --log contrib/testpngs/rgb-8-sRGB.png contrib/testpngs/gray-4.png
            echo ./pngimage --list-combos --log contrib/pngsuite/basn0g01.png contrib/pngsuite/basn6a16.png
            echo ./pngunknown --strict default=discard pngtest.png"#,
    },
    Project {
        name: "libuv1",
        build: "use_cmake -DBUILD_TESTING=ON",
        directory: "build",
        tests: r#"for test in timer threadpool_queue_work_simple fs_file_sync tcp_ping_pong pipe_ping_pong \
            thread_create loop_alive getaddrinfo_basic spawn_stdout signal_multiple_loops; do
                echo ./uv_run_tests_a $test $test; done"#,
    },
    Project {
        name: "libxml2",
        build: r#"use_configure --without-python --without-lzma
            make -j1 testdict testchar"#,
        directory: ".",
        tests: r#"for test in testdict testchar; do echo ./$test; done
            for file in test/att11 test/valid/REC-xml-19980210.xml; do echo ./xmllint --noout --nonet $file; done"#,
    },
    Project {
        name: "libyaml",
        build: "use_cmake -DBUILD_TESTING=ON",
        directory: "build",
        tests: r#"echo ./test-version; echo ./test-reader
            for program in scanner parser loader emitter dumper; do
                echo ./run-$program ../examples/*.yaml; done
            for file in ../examples/anchors.yaml ../examples/mapping.yaml; do
                echo ./run-parser-test-suite $file; done"#,
    },
    Project {
        name: "libzstd",
        build: r#"cd tests
            make -j1 CC="$CC" MOREFLAGS="$CFLAGS" LDFLAGS="$LDFLAGS -pthread" DEBUGFLAGS= \
                fuzzer zstreamtest invalidDictionaries legacy poolTests"#,
        directory: "tests",
        tests: r#"echo ./fuzzer -s7 -t1 -i20; echo ./zstreamtest -s7 -t1 -i20
            echo ./invalidDictionaries; echo ./legacy; echo ./poolTests"#,
    },
    Project {
        name: "lua5.4",
        build: r#"cd src
            make -j1 a lua luac CC="$CC -std=gnu99" CFLAGS="$CFLAGS -DLUA_USE_LINUX" \
                LIBS="-Wl,-E -ldl -lm" MYLDFLAGS="$LDFLAGS"
            cat > work.lua <<'END'
local words, counts = {}, {}
for i = 1, 400000 do
  local word = 'w' .. (i * 7919 % 3001)
  words[#words + 1] = word
  counts[word] = (counts[word] or 0) + 1
end
local parts = {}
for word, n in pairs(counts) do parts[#parts + 1] = word .. '=' .. n end
table.sort(parts)
for i = 1, 60 do
  local text = table.concat(parts, ',')
  for key, n in text:gmatch('(%w+)=(%d+)') do counts[key] = { n = tonumber(n), key = key .. i } end
end
print(#parts)
END"#,
        directory: "src",
        tests: "echo ./lua work.lua; echo ./luac -p work.lua",
    },
    Project {
        name: "lz4",
        build: "cd tests && flags && make fuzzer frametest fullbench",
        directory: "tests",
        tests: r#"echo ./fuzzer -s7 -t1 -i20; echo ./frametest -s7 -t1 -i20
            echo ./decompress-partial; echo ./checkFrame -b65536 ../README.md"#,
    },
    Project {
        name: "mawk",
        build: "./configure && make -j1",
        directory: "test",
        tests: r#"for n in 0 1 2 3 4 5; do echo ../mawk -f reg$n.awk mawktest.dat; done
            echo ../mawk -f wc.awk mawktest.dat; echo ../mawk -f wfrq0.awk mawktest.dat"#,
    },
    Project {
        name: "pcre2",
        build: "use_configure --enable-jit",
        directory: ".",
        tests: r#"echo ./pcre2posix_test; echo ./pcre2_jit_test
            for n in 1 2 5; do echo ./pcre2test -q testdata/testinput$n; done
            echo ./pcre2test -q -jit testdata/testinput1"#,
    },
    Project {
        name: "pugixml",
        build: r#"$CXX $CXXFLAGS -std=c++11 src/pugixml.cpp $(ls tests/*.cpp | grep -v fuzz_) $LDFLAGS -o tests/all"#,
        directory: ".",
        tests: "echo tests/all",
    },
    Project {
        name: "re2",
        build: "make -j1 CXX=\"$CXX\" CXXFLAGS=\"$CXXFLAGS -pthread\" LDFLAGS=\"$LDFLAGS -pthread\" \
            obj/test/parse_test obj/test/compile_test obj/test/set_test obj/test/re2_test obj/test/simplify_test \
            obj/test/search_test",
        directory: ".",
        tests: "for test in obj/test/*_test; do echo $test; done",
    },
    Project {
        name: "tinyxml2",
        build: "use_cmake",
        directory: ".",
        tests: "echo build/xmltest",
    },
    Project {
        name: "xxhash",
        build: r#"make -j1 xxhsum CC="$CC" CFLAGS="$CFLAGS" LDFLAGS="$LDFLAGS""#,
        directory: ".",
        tests: r#"echo ./xxhsum -H0 README.md; echo ./xxhsum -H1 README.md; echo ./xxhsum -H2 xxhash.h
            echo ./xxhsum -H3 xxhash.h CHANGELOG"#,
    },
    Project {
        name: "yajl",
        build: "use_cmake",
        directory: "test/parsing/cases",
        tests: r#"for file in [a-z]*.json; do echo ../../../build/test/parsing/yajl_test $file; done | head -12
            echo ../../../build/test/api/gen-extra-close"#,
    },
    Project {
        name: "zlib",
        build: r#"./configure --static
            make -j1 example minigzip
            $CC $CFLAGS -I. test/infcover.c libz.a $LDFLAGS -o infcover"#,
        directory: ".",
        tests: "echo ./example; echo ./infcover; echo ./minigzip -c README",
    },
];
