// The JDK's HttpClient, against the gateway whose address is its argument; prints JSON. It offers to
// go on in HTTP/2 (Upgrade: h2c) with its first request on each connection.

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublisher;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.util.stream.Collectors;

class Jdk {
    static final HttpClient CLIENT = HttpClient.newHttpClient();
    static String url;

    static HttpRequest post(String path, BodyPublisher body) {
        return HttpRequest.newBuilder(URI.create(url + path))
            .header("Content-Type", "application/json")
            .POST(body)
            .build();
    }

    static HttpResponse<String> ask(String path, String body) throws Exception {
        return CLIENT.send(post(path, BodyPublishers.ofString(body)), BodyHandlers.ofString());
    }

    public static void main(String[] arguments) throws Exception {
        url = arguments[0];
        String messages = "\"messages\": [{\"role\": \"user\", \"content\": \"What can you do?\"}]";
        String asked = "\"model\": \"demo\", \"temperature\": 0, \"max_tokens\": 30, " + messages;
        HttpResponse<String> whole = ask("/v1/chat/completions", "{" + asked + "}");
        HttpResponse<String> again = ask("/v1/chat/completions", "{" + asked + "}");
        // A publisher of unknown length sends the body in chunks.
        BodyPublisher chunked = BodyPublishers.fromPublisher(
            BodyPublishers.ofString("{" + asked + ", \"stream\": true}"));
        String streamed = CLIENT.send(post("/v1/chat/completions", chunked), BodyHandlers.ofLines())
            .body()
            .filter(line -> line.startsWith("data: {"))
            .map(line -> line.substring(6))
            .collect(Collectors.joining(",", "[", "]"));
        HttpResponse<String> vectors = ask(
            "/v1/embeddings", "{\"model\": \"demo\", \"input\": [\"one\", \"two\"]}");
        HttpResponse<String> error = ask("/v1/chat/completions", "{" + messages + ", \"model\": \"none\"}");
        System.out.println("{\"whole\": " + whole.body()
            + ", \"again\": " + again.body()
            + ", \"version\": \"" + whole.version()
            + "\", \"streamed\": " + streamed
            + ", \"vectors\": " + vectors.body()
            + ", \"status\": " + error.statusCode()
            + ", \"error\": " + error.body() + "}");
    }
}
