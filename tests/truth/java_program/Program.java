import java.util.ArrayList;
import java.util.List;

class Program {
    static native void leak();

    static void awaitByte() throws Exception {
        System.in.read();
    }

    public static void main(String[] arguments) throws Exception {
        System.load(arguments[0]);
        List<byte[]> kept = new ArrayList<>();
        for (int i = 0; i < 100; i++) {
            kept.add(new byte[1 << 20]);
        }
        System.out.println("ready");
        awaitByte();
        leak();
        System.out.println("done");
        awaitByte();
        System.out.println(kept.size());
    }
}
